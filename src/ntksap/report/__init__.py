"""Tables, figures and one HTML page; reads run folders only."""

from ntksap.report.differences import Mark, marks
from ntksap.report.experiments import labelled_cells
from ntksap.report.figures import (
    STYLE,
    accuracy_figure,
    colour_of,
    densities_figure,
    diagnosis_figure,
    during_figure,
    epochs_figure,
    methods_figure,
    node_path_figure,
    save_figure,
    sparsity_axis,
    spectrum_figure,
    write_figure,
)
from ntksap.report.mask_labels import mask_labels
from ntksap.report.page import build_report, write_report
from ntksap.report.reading import read_folder
from ntksap.report.rows import rows, to_csv
from ntksap.report.run_files import spectra_of
from ntksap.report.summary import verdicts
from ntksap.report.table import Cell, cells, formatted

__all__ = [
    "STYLE",
    "Cell",
    "Mark",
    "accuracy_figure",
    "build_report",
    "cells",
    "colour_of",
    "densities_figure",
    "diagnosis_figure",
    "during_figure",
    "epochs_figure",
    "formatted",
    "labelled_cells",
    "marks",
    "mask_labels",
    "methods_figure",
    "node_path_figure",
    "read_folder",
    "rows",
    "save_figure",
    "sparsity_axis",
    "spectra_of",
    "spectrum_figure",
    "to_csv",
    "verdicts",
    "write_figure",
    "write_report",
]

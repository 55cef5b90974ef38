"""Tables, figures and one HTML page; reads run folders only."""

from ntksap.report.during_figure import epochs_figure, methods_figure
from ntksap.report.figures import (
    STYLE,
    accuracy_figure,
    colour_of,
    densities_figure,
    diagnosis_figure,
    save_figure,
    sparsity_axis,
    write_figure,
)
from ntksap.report.page import build_report, write_report
from ntksap.report.reading import read_folder
from ntksap.report.spectra import spectra_of
from ntksap.report.spectrum_figure import during_figure, spectrum_figure
from ntksap.report.svg import raised
from ntksap.report.table import Cell, cells, formatted, ranks, to_csv

__all__ = [
    "STYLE",
    "Cell",
    "accuracy_figure",
    "build_report",
    "cells",
    "colour_of",
    "densities_figure",
    "diagnosis_figure",
    "during_figure",
    "epochs_figure",
    "formatted",
    "methods_figure",
    "raised",
    "ranks",
    "read_folder",
    "save_figure",
    "sparsity_axis",
    "spectra_of",
    "spectrum_figure",
    "to_csv",
    "write_figure",
    "write_report",
]

"""Figures in files, with matplotlib: PNG and SVG for papers. The charts of the page are in `ntksap.report.charts`."""

from ntksap.report.figures.accuracy import accuracy_figure, densities_figure
from ntksap.report.figures.diagnosis import diagnosis_figure
from ntksap.report.figures.during import epochs_figure, methods_figure
from ntksap.report.figures.paths import node_path_figure
from ntksap.report.figures.spectra import ZERO, during_figure, spectrum_figure
from ntksap.report.figures.style import COLOURS, STYLE, Look, colour_of, looks, save_figure, sparsity_axis, write_figure

__all__ = [
    "COLOURS",
    "STYLE",
    "ZERO",
    "Look",
    "accuracy_figure",
    "colour_of",
    "densities_figure",
    "diagnosis_figure",
    "during_figure",
    "epochs_figure",
    "looks",
    "methods_figure",
    "node_path_figure",
    "save_figure",
    "sparsity_axis",
    "spectrum_figure",
    "write_figure",
]

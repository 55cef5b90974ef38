"""The charts of the page, in the form that Plotly draws: plain data and layout. A new chart is one function."""

from ntksap.report.charts.accuracy import accuracy_panels
from ntksap.report.charts.chart import Chart, Panel
from ntksap.report.charts.curves import learning_panels, spectra_panels
from ntksap.report.charts.densities import density_panels

__all__ = ["Chart", "Panel", "accuracy_panels", "density_panels", "learning_panels", "spectra_panels"]

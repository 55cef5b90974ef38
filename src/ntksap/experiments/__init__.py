"""What a researcher asks for in one call: comparisons of methods, spectra. `runs` does the work, `report` draws it."""

from ntksap.experiments.comparison import MethodComparison, compare
from ntksap.experiments.spectra import spectrum, spectrum_during

__all__ = ["MethodComparison", "compare", "spectrum", "spectrum_during"]

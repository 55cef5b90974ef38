"""One self-contained HTML page from run folders: words, charts, tables; nothing is fetched from anywhere."""

import base64
import hashlib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ntksap._base import write_atomically
from ntksap._version import __version__
from ntksap.report.charts import Panel, accuracy_panels, density_panels, learning_panels, spectra_panels
from ntksap.report.charts.chart import file_name
from ntksap.report.differences import differences
from ntksap.report.experiments import Experiment, experiments
from ntksap.report.reading import Folder, read_folder
from ntksap.report.run_files import Spectrum
from ntksap.report.summary import Sentence, counts, findings
from ntksap.report.tables import Table, accuracy_table, cost_table, difference_table, measured_table, spectra_table


@dataclass(frozen=True)
class ExperimentView:
    """An experiment as the page shows it; what is missing is empty or None."""

    title: str
    findings: list[Sentence]
    images: int | None
    collapsed: bool
    accuracy: list[Panel]
    densities: list[Panel]
    learning: list[Panel]
    table: Table | None
    cost: Table | None
    measured: Table | None
    differences: Table | None


@dataclass(frozen=True)
class SpectraView:
    """The spectra of one file as the page shows them."""

    name: str
    panels: list[Panel]
    table: Table


def build_report(root: str | Path, out: str | Path | None = None) -> Path:
    """Write the report on every run below ``root`` to ``out`` (by default report.html in it) and return where it is."""
    return write_report(read_folder(root), Path(root) / "report.html" if out is None else Path(out))


def write_report(folder: Folder, out: Path) -> Path:
    """Write the report on what was read, all of it or nothing."""
    # names from damaged files may hold lone surrogates, which cannot be encoded
    write_atomically(out, render(folder).encode(errors="replace"))
    return out


def render(folder: Folder) -> str:
    """Return the page. The same folder gives the same bytes."""
    environment = Environment(
        loader=PackageLoader("ntksap.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["file"] = file_name
    style, library, script = (_file(*name) for name in (_STYLE, _LIBRARY, _SCRIPT))
    views = [_view(experiment) for experiment in experiments(folder.runs)]
    return environment.get_template("report.html").render(
        title=views[0].title if len(views) == 1 else f"{len(views)} experiments in {folder.name}",
        folder=folder,
        counts=counts(folder),
        views=views,
        spectra=[_spectra_view(name, spectra) for name, spectra in folder.spectra.items()],
        style=Markup(style),
        library=Markup(library),
        script=Markup(script),
        script_hashes=" ".join(_hash(text) for text in (library, script)),
        version=__version__,
    )


def _view(one: Experiment) -> ExperimentView:
    found = list(differences(one.table).values())
    return ExperimentView(
        title=one.title,
        findings=findings(one),
        images=one.test_images,
        collapsed=any(cell.collapsed for cell in one.table),
        accuracy=accuracy_panels(one) if one.table else [],
        densities=density_panels(one),
        learning=learning_panels(one),
        table=accuracy_table(one) if one.table else None,
        cost=cost_table(one) if one.table else None,
        measured=measured_table(one),
        differences=difference_table(one, found) if found else None,
    )


def _spectra_view(name: str, spectra: list[Spectrum]) -> SpectraView:
    return SpectraView(name, spectra_panels(spectra), spectra_table(name, spectra))


_STYLE, _SCRIPT = ("templates", "report.css"), ("templates", "report.js")
_LIBRARY = ("vendor", "plotly-cartesian.min.js")


def _file(*parts: str) -> str:
    return resources.files("ntksap.report").joinpath(*parts).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Return the hash by which the page's security policy recognises its own scripts; a browser runs no other."""
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"

"""One self-contained HTML page from run folders: words, figures, tables; nothing is fetched from anywhere."""

import base64
import hashlib
from importlib import resources
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ntksap._base import write_atomically
from ntksap._version import __version__
from ntksap.report.experiments import experiments, sparsity_text
from ntksap.report.panels import spectra_panels
from ntksap.report.reading import Folder, read_folder
from ntksap.report.summary import counts
from ntksap.report.table import formatted
from ntksap.report.views import view_of
from ntksap.runs import DENSE


def build_report(root: str | Path, out: str | Path | None = None) -> Path:
    """Write the report on every run below ``root`` to ``out`` (by default report.html in it) and return where it is."""
    return write_report(read_folder(root), Path(root) / "report.html" if out is None else Path(out))


def write_report(folder: Folder, out: Path) -> Path:
    """Write the report on what was read, the whole of it or nothing."""
    # names from damaged files may hold halves of characters, which no encoding has
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
    environment.filters["percent"] = sparsity_text
    style, script = (_template(name) for name in ("report.css", "report.js"))
    views = [view_of(experiment) for experiment in experiments(folder.runs)]
    return environment.get_template("report.html").render(
        title=views[0].title if len(views) == 1 else f"{len(views)} experiments in {folder.name}",
        folder=folder,
        counts=counts(folder),
        views=views,
        spectra={name: (spectra, spectra_panels(spectra)) for name, spectra in folder.spectra.items()},
        formatted=formatted,
        DENSE=DENSE,
        style=Markup(style),
        script=Markup(script),
        style_hash=_hash(style),
        script_hash=_hash(script),
        version=__version__,
    )


def _template(name: str) -> str:
    return resources.files("ntksap.report").joinpath("templates", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Return what the page's security policy knows its own style and script by; a browser runs no other."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

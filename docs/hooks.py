"""What mkdocs does not do by itself: pages made of notebooks, of scripts and of files at the root of the repository.

A link such as ``../examples/plain_loop.py`` or ``notebooks/cnn.ipynb`` works in the repository as it stands; on the
site it leads to the page that is made here.
"""

import json
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
EXECUTED = ROOT / "build" / "notebooks"
AT_ROOT = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that have no Markdown file below ``docs``."""
    pages = {page: (ROOT / source).read_text() for source, page in AT_ROOT.items()}
    for script in (ROOT / "examples").glob("*.py"):
        pages[f"examples/{script.stem}.md"] = f"# {script.name}\n\n```py\n{script.read_text()}```\n"
    for notebook in (ROOT / "docs" / "notebooks").glob("*.ipynb"):
        executed = EXECUTED / notebook.name  # with outputs: `make docs` executes notebooks before it builds
        pages[f"notebooks/{notebook.stem}.md"] = markdown_of(executed if executed.exists() else notebook)
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Turn links to files of the repository into links to their pages."""
    up = "../" * page.file.src_uri.count("/")
    if page.file.src_uri in AT_ROOT.values():
        markdown = markdown.replace("](docs/", "](")
    for source, name in AT_ROOT.items():
        markdown = markdown.replace(f"](../{up}{source}", f"]({up}{name}")
    markdown = re.sub(rf"\]\({re.escape(up)}\.\./examples/(\w+)\.py", rf"]({up}examples/\1.md", markdown)
    return re.sub(r"\]\(((?:\.\./)*notebooks/\w+)\.ipynb\)", r"](\1.md)", markdown)


def on_post_build(config: MkDocsConfig) -> None:
    """Let the search find its index where a page may not read files, only load scripts: in a folder."""
    index = Path(config.site_dir) / "search" / "search_index.json"
    index.with_suffix(".js").write_text(f"var __index = {index.read_text()}")


def markdown_of(notebook: Path) -> str:
    """Return a notebook as Markdown: text as it is, code in fences, and what it printed or drew below."""
    link = f'[Download this notebook]({notebook.name}){{ .md-button download="{notebook.name}" }}'
    parts = []
    for cell in json.loads(notebook.read_text())["cells"]:
        source = "".join(cell["source"])
        parts += [source] if cell["cell_type"] == "markdown" else [f"```py\n{source}\n```", *outputs(cell)]
    return "\n\n".join([parts[0], link, *parts[1:]])


def outputs(cell: dict[str, Any]) -> list[str]:
    """Return what a code cell printed, and its pictures, as Markdown; warnings, which name files of a machine, not."""
    texts, pictures = [], []
    for output in cell["outputs"]:
        data = output.get("data", {})
        if "image/png" in data:
            pictures.append(f"![output](data:image/png;base64,{data['image/png'].replace(chr(10), '')})")
        elif output.get("name") != "stderr":
            texts += output.get("text") or data.get("text/plain", [])
    printed = "".join(texts).rstrip()
    return [f"```text\n{printed}\n```", *pictures] if printed else pictures

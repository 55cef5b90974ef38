"""``python docs/figures/rooms.py``: draw ``rooms.svg``, the rooms and who imports whom, from the imports.

A room stands to the right of everything it imports. Lines to the two rooms that everybody uses are left out.
"""

import ast
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src" / "ntksap"
CORE = ["_base", "net", "pruning", "compaction", "methods", "_prune", "analysis", "integrations"]
LAB = ["models", "data", "training", "runs", "report", "experiments", "paper", "cli"]
SAYS = {
    "_base": "errors, seeds, files, ranks",
    "net": "any module as a function; kernels",
    "pruning": "masks, allocation, patterns, rounds",
    "methods": "one file per method; moments",
    "_prune": "prune(), allocate()",
    "analysis": "tangent kernel, cost, diagnosis",
    "compaction": "a smaller module, same outputs",
    "integrations": "masks in others' loops",
    "models": "the paper's networks",
    "data": "data sets",
    "training": "loop, recipes, checkpoints",
    "runs": "a run on disk, sweeps",
    "report": "tables, figures, one page",
    "experiments": "compare(), spectrum()",
    "paper": "the plans",
    "cli": "arguments → call → print",
}
EVERYBODY = ("_base", "net")


def imports(room: str) -> set[str]:
    """Return the rooms that a room imports."""
    found: set[str] = set()
    for file in (SOURCE / room).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ntksap"):
                parts = (node.module or "").split(".")[1:]
                found |= {parts[0]} if parts else {alias.name for alias in node.names}
    return found & SAYS.keys() - {room}


def draw(rooms: list[str]) -> Figure:
    """Draw the rooms in two rows, the core above the lab."""
    figure = Figure(figsize=(14.5, 5.6))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, 8.2), ylim=(0, 3.35))
    axes.set_axis_off()
    place = {room: (index, row) for row, names in ((1, CORE), (0, LAB)) for index, room in enumerate(names)}
    at = {room: (0.15 + column, 0.55 + 1.45 * row) for room, (column, row) in place.items()}
    for row, title in ((1, "ntksap: torch, numpy, safetensors"), (0, "ntksap[lab]")):
        axes.text(0.15, 1.27 + 1.45 * row, title, fontsize=11, color="#555555")
    for room in rooms:
        for other in sorted(imports(room) & set(rooms)):
            if other not in EVERYBODY:
                (x, y), (to_x, to_y) = at[room], at[other]
                bend = 0.25 if y == to_y else 0.05
                arrow = FancyArrowPatch(
                    (x + 0.4, y + (0.6 if y == to_y else 0.6 if y < to_y else 0)),
                    (to_x + 0.4, to_y + (0.6 if y == to_y else 0)),
                    connectionstyle=f"arc3,rad={bend}",
                    arrowstyle="-|>",
                    mutation_scale=9,
                    color="#9aa7b5",
                    lw=0.9,
                )
                axes.add_patch(arrow)
    for room in rooms:
        x, y = at[room]
        colour = "#e8f0fa" if room in CORE else "#f6efe2"
        axes.add_patch(FancyBboxPatch((x, y), 0.82, 0.56, boxstyle="round,pad=0.02", fc=colour, ec="#44566c"))
        axes.text(x + 0.41, y + 0.38, room, ha="center", va="center", fontsize=12, weight="bold", color="#1c2733")
        words = SAYS[room].split()
        half = (len(words) + 1) // 2
        axes.text(x + 0.41, y + 0.15, " ".join(words[:half]) + "\n" + " ".join(words[half:]), ha="center", va="center",
                  fontsize=9, color="#1c2733")  # fmt: skip
    note = "Every room may use _base and net; an arrow points from a room to another that it imports."
    axes.text(0.15, 0.2, note, fontsize=11, color="#555555")
    return figure


def main() -> None:
    """Write the file beside this one."""
    mpl.rcParams["svg.hashsalt"] = "ntksap"
    rooms = [room for room in SAYS if (SOURCE / room).is_dir()]
    draw(rooms).savefig(HERE / "rooms.svg", facecolor="white", metadata={"Date": None})


if __name__ == "__main__":
    main()

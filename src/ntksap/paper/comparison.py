"""`Comparison`: our numbers beside the paper's, as values, lines of a table, JSON and Markdown."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ntksap.paper.plan import Plan

Measure = Literal["ratio", "difference", "same"]


@dataclass(frozen=True)
class Entry:
    """One entry of a table. Numbers are in the paper's unit; ``paper`` is None where it gives none."""

    panel: str
    row: str
    column: str
    ours: Any
    paper: Any = None
    std: float | None = None
    paper_std: float | None = None
    measure: Measure = "ratio"
    note: str = ""

    @property
    def agreement(self) -> float | bool | None:
        """Ours ÷ paper, ours − paper, or whether both are the same; None where the paper gives nothing."""
        if self.paper is None or (self.measure == "ratio" and not self.paper):
            return None
        if self.measure == "same":
            return bool(self.ours == self.paper)
        return float(self.ours / self.paper if self.measure == "ratio" else self.ours - self.paper)


@dataclass(frozen=True)
class Comparison:
    """All entries of a plan, and what could not be carried out: (panel, row, reason)."""

    plan: Plan
    entries: Sequence[Entry]
    missing: Sequence[tuple[str, str, str]] = ()
    figures: Sequence[str] = ()
    remarks: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "name": self.plan.name,
            "title": self.plan.title,
            "where": self.plan.where,
            "scale": self.plan.scale,
            "claims": list(self.plan.claims),
            "entries": [{**asdict(entry), "agreement": entry.agreement} for entry in self.entries],
            "missing": [{"panel": panel, "row": row, "reason": reason} for panel, row, reason in self.missing],
            "left_out": dict(self.plan.left_out),
            "figures": list(self.figures),
            "remarks": self.words(),
        }

    def words(self) -> list[str]:
        """Return what must be said beside the numbers."""
        said = [self.plan.note] if self.plan.note else []
        if self.entries and all(entry.paper is None for entry in self.entries):
            said.append("The paper shows a figure only: it gives no numbers to put beside these.")
        said += [*self.remarks, *(f"{panel}: not at this scale, {why}." for panel, why in self.plan.left_out.items())]
        return [*said, *dict.fromkeys(entry.note for entry in self.entries if entry.note)]

    def to_markdown(self) -> str:
        """Return a page: tables, what the paper says, what is missing."""
        parts = [f"# {self.plan.title}", f"The paper's {self.plan.where}, at the scale `{self.plan.scale}`."]
        for title, header, lines in self.tables():
            rule = _line(["---", "---", *["---:"] * (len(header) - 2)])
            parts.append("\n".join([f"**{title}**", "", _line(header), rule, *map(_line, lines)]))
        parts += [f"![{name}]({name})" for name in self.figures if name.endswith(".png")]
        if self.plan.claims:
            parts.append("\n".join(["What the paper finds:", "", *(f"- {claim}" for claim in self.plan.claims)]))
        parts += self.words()
        if self.missing:
            said = [f"- {panel}, {row}: {reason}" for panel, row, reason in self.missing]
            parts.append("\n".join(["Not carried out:", "", *said]))
        return "\n\n".join(parts) + "\n"

    def tables(self) -> list[tuple[str, list[str], list[list[str]]]]:
        """Return (title, header, lines) of a table per panel, or of one table where each panel has a single column."""
        panels = list(dict.fromkeys(entry.panel for entry in self.entries))
        columns = {panel: self._columns(panel) for panel in panels}
        if len(panels) > 1 and all(len(names) == 1 for names in columns.values()):
            title = columns[panels[0]][0]
            return [(title, ["", "", *panels], self._lines([(panel, columns[panel][0]) for panel in panels]))]
        return [
            (panel, ["", "", *names], self._lines([(panel, name) for name in names]))
            for panel, names in columns.items()
        ]

    def _columns(self, panel: str) -> list[str]:
        return list(dict.fromkeys(entry.column for entry in self.entries if entry.panel == panel))

    def _lines(self, places: Sequence[tuple[str, str]]) -> list[list[str]]:
        """Return up to three lines per row: ours, the paper's, and how they agree."""
        at = {(entry.row, entry.panel, entry.column): entry for entry in self.entries}
        made = []
        for row in dict.fromkeys(entry.row for entry in self.entries if (entry.panel, entry.column) in places):
            entries = [at.get((row, *place)) for place in places]
            made.append([row, "ours", *(_number(e.ours, e.std) if e else "–" for e in entries)])
            if any(entry and entry.paper is not None for entry in entries):
                measure = next(entry.measure for entry in entries if entry)
                made.append(["", "paper", *(_number(e.paper, e.paper_std) if e else "–" for e in entries)])
                made.append(["", measure, *(_agreement(entry) for entry in entries)])
        return made


def _line(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _number(value: Any, std: float | None) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "✓" if value else "·"
    if isinstance(value, str | int):
        return str(value)
    text = f"{value:.2f}" if 1 <= abs(value) < 1000 else f"{value:.3g}"
    return text if std is None else f"{text} ± {std:.2f}"


def _agreement(entry: Entry | None) -> str:
    if entry is None or entry.agreement is None:
        return ""
    if entry.measure == "same":
        return "yes" if entry.agreement else "NO"
    return f"{entry.agreement:.3f}" if entry.measure == "ratio" else f"{entry.agreement:+.2f}"

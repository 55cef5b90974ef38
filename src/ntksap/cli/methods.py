"""``ntksap methods``."""

from rich.table import Table

from ntksap.cli.console import print_json
from ntksap.cli.tables import print_table
from ntksap.methods import METHODS


def show_methods(json: bool = False) -> None:
    """List the methods: what each needs, its rounds and schedule.

    Args:
        json: Print one JSON object, with the options of each method.
    """
    if json:
        print_json(
            {
                "methods": [
                    {
                        "name": method.name,
                        "summary": method.summary,
                        "data_free": method.data_free,
                        "data": method.data,
                        "labels": method.labels and not method.data_free,
                        "returns_weights": method.returns_weights,
                        "weight_agnostic": method.weight_agnostic,
                        "iterative": method.iterative,
                        "rounds": method.rounds,
                        "schedule": method.schedule if method.iterative else "one-shot",
                        "regrow": method.regrow,
                        "allocation": method.allocation,
                        "options": {o.name: {"default": o.default, "help": o.help} for o in method.options.values()},
                    }
                    for method in METHODS.values()
                ]
            }
        )
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("method", no_wrap=True)
    table.add_column("weight-\nagnostic", justify="center")
    table.add_column("data", no_wrap=True)
    table.add_column("rounds", justify="right")
    table.add_column("schedule", no_wrap=True)
    table.add_column("idea")
    for method in METHODS.values():
        agnostic = "✓" if method.weight_agnostic else ""
        data = method.data if method.labels or method.data_free else f"{method.data},\nno labels"
        schedule = method.schedule if method.iterative else "one-shot"
        table.add_row(method.name, agnostic, data, str(method.rounds), schedule, method.summary)
    print_table(table)

"""The ``ntksap`` command: one function per subcommand, errors to one place."""

import os
import sys
import warnings
from collections.abc import Callable, Sequence

import tyro

from ntksap._base import ApproximationWarning, CollapseWarning, NtksapError, keep_memory
from ntksap.cli.compare import run_compare
from ntksap.cli.console import stderr
from ntksap.cli.cost import show_cost
from ntksap.cli.diagnose import run_diagnose
from ntksap.cli.methods import show_methods
from ntksap.cli.overrides import spell_out_flags
from ntksap.cli.prune import run_prune
from ntksap.cli.report import run_report
from ntksap.cli.reproduce import run_reproduce
from ntksap.cli.spectrum import run_spectrum
from ntksap.cli.train import run_train

_COMMANDS: dict[str, Callable[..., None]] = {
    "methods": show_methods,
    "prune": run_prune,
    "diagnose": run_diagnose,
    "train": run_train,
    "compare": run_compare,
    "cost": show_cost,
    "spectrum": run_spectrum,
    "report": run_report,
    "reproduce": run_reproduce,
}
_RANK = os.environ.get("RANK", "0")  # which process of a torchrun job this is


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand; return 0, or 1 after an error, or 130 after Ctrl-C."""
    if "" not in sys.path:  # so that --model package.module:factory finds the user's own code
        sys.path.insert(0, "")
    keep_memory()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", CollapseWarning)
            warnings.simplefilter("always", ApproximationWarning)
            warnings.showwarning = _show_warning
            tyro.extras.subcommand_cli_from_dict(
                _COMMANDS,
                args=spell_out_flags(sys.argv[1:] if argv is None else argv),
                prog="ntksap",
                description="Prune neural networks before training them. Each command takes --help and --json.",
            )
    except NtksapError as error:
        who = f" (process {_RANK})" if _RANK != "0" else ""
        stderr.print(f"[bold red]error{who}:[/] {_plain(str(error))}", highlight=False)
        return 1
    except KeyboardInterrupt:
        stderr.print("\nstopped; nothing half-written was left", highlight=False)
        return 130
    except BrokenPipeError:  # the reader of our output has gone, as in `ntksap methods | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


def _show_warning(message: Warning | str, *args: object, **kwargs: object) -> None:
    if _RANK == "0":
        stderr.print(f"[bold yellow]warning:[/] {_plain(str(message))}", highlight=False)


def _plain(text: str) -> str:
    return text.replace("[", r"\[")

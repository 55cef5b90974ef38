"""The ``ntksap`` command: a table of subcommands, each imported when it is asked for, and errors in one place."""

import difflib
import importlib
import inspect
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence

from ntksap._lab import say_what_is_missing
from ntksap._version import __version__

COMMANDS = {
    "methods": ("show_methods", "list the methods and what each needs"),
    "allocate": ("run_allocate", "decide how many weights each layer keeps, from shapes alone"),
    "prune": ("run_prune", "choose which weights to keep, before training"),
    "diagnose": ("run_diagnose", "say what masks leave of each layer, and whether it is used"),
    "train": ("run_train", "prune, then train: one run, which the same command resumes"),
    "compare": ("run_compare", "compare methods: a sweep of runs, with table, figure and report"),
    "cost": ("show_cost", "count multiply-adds of inference, pruning and training"),
    "spectrum": ("run_spectrum", "compare spectra of the neural tangent kernel"),
    "report": ("run_report", "make one HTML page of all runs below a folder"),
    "reproduce": ("run_reproduce", "carry out a table or figure of the paper"),
    "completion": ("print_completion", "print a script that makes bash, zsh or fish complete commands and options"),
}
"""Command → the function in the file of its name, and what it does."""
_RANK = os.environ.get("RANK", "0")  # which process of a torchrun job this is


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand; return 0, 1 after an error, 2 after a wrong command line, or 130 after Ctrl-C."""
    try:
        return _answer(list(sys.argv[1:] if argv is None else argv))
    except BrokenPipeError:  # the reader of our output has gone, as in `ntksap methods | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _answer(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_help())
        return 0
    if arguments[0] == "--version":
        print(f"ntksap {__version__}")
        return 0
    if arguments[0] not in COMMANDS:
        near = difflib.get_close_matches(arguments[0], COMMANDS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        print(f"error: unknown command {arguments[0]!r}.{hint} Known: {', '.join(COMMANDS)}.", file=sys.stderr)
        return 2
    if "" not in sys.path:  # so that --model package.module:factory finds the user's own code
        sys.path.insert(0, "")
    try:
        return _run(arguments)
    except ModuleNotFoundError as error:
        if (sentence := say_what_is_missing("the ntksap command", error)) is None:
            raise
        print(f"error: {sentence}", file=sys.stderr)
        return 1


def _run(arguments: list[str]) -> int:
    import tyro

    from ntksap._base import ApproximationWarning, CollapseWarning, NtksapError, keep_memory, share_cores
    from ntksap.cli.choices import CHOICES
    from ntksap.cli.console import stderr
    from ntksap.cli.overrides import spell_out_flags

    name = arguments[0]
    try:
        command = command_named(name)
        keep_memory()
        share_cores()
        with warnings.catch_warnings():
            warnings.simplefilter("always", CollapseWarning)
            warnings.simplefilter("always", ApproximationWarning)
            warnings.showwarning = _show_warning
            tyro.cli(command, args=spell_out_flags(arguments[1:]), prog=f"ntksap {name}", registry=CHOICES)
    except NtksapError as error:
        who = f" (process {_RANK})" if _RANK != "0" else ""
        stderr.print(f"[bold red]error{who}:[/] {_plain(str(error))}", highlight=False)
        return 1
    except KeyboardInterrupt:
        stderr.print("\nstopped; nothing half-written was left", highlight=False)
        return 130
    return 0


def command_named(name: str) -> Callable[..., None]:
    """Return the function of a command; its options are its arguments."""
    found: Callable[..., None] = getattr(importlib.import_module(f"ntksap.cli.{name}"), COMMANDS[name][0])
    # --help would break its lines where the docstring does: those that continue an argument are indented by 8.
    found.__doc__ = re.sub(r"\n {8,}", " ", inspect.getdoc(found) or "")
    return found


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {summary}" for name, (_, summary) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: ntksap COMMAND [OPTIONS]",
            "",
            "Prune neural networks before training them.",
            "",
            *lines,
            "",
            "ntksap COMMAND --help explains the options of a command; commands with a result take --json.",
            "ntksap --version prints the version.",
        ]
    )


def _show_warning(message: Warning | str, *args: object, **kwargs: object) -> None:
    from ntksap.cli.console import stderr

    if _RANK == "0":
        stderr.print(f"[bold yellow]warning:[/] {_plain(str(message))}", highlight=False)


def _plain(text: str) -> str:
    """Return a message with its markup escaped, since names from files may contain some."""
    return text.replace("[", r"\[")

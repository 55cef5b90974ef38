"""``ntksap completion``."""

from typing import Literal

import tyro
from tyro.conf import Positional

from ntksap.cli import COMMANDS, command_named
from ntksap.cli.choices import CHOICES


def print_completion(shell: Positional[Literal["bash", "zsh", "fish"]]) -> None:
    """Print a script that makes a shell complete commands, options and their choices.

    bash: ntksap completion bash > ~/.local/share/bash-completion/completions/ntksap

    zsh: ntksap completion zsh > ~/.zfunc/_ntksap (with fpath+=~/.zfunc before compinit in ~/.zshrc)

    fish: ntksap completion fish > ~/.config/fish/completions/ntksap.fish

    Args:
        shell: Which shell.
    """
    commands = {name: command_named(name) for name in COMMANDS}
    arguments = ["--tyro-write-completion", shell, "-"]
    tyro.extras.subcommand_cli_from_dict(
        commands, prog="ntksap", args=arguments, sort_subcommands=False, registry=CHOICES
    )

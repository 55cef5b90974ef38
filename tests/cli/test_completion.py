"""``ntksap completion``: what it prints really completes."""

import shutil
import subprocess

import pytest

from ntksap.cli import COMMANDS, main


@pytest.fixture(scope="module")
def scripts():
    return {}


def script(capsys, scripts, shell: str) -> str:
    if shell not in scripts:
        with pytest.raises(SystemExit) as end:
            main(["completion", shell])
        assert end.value.code in (0, None)
        scripts[shell] = capsys.readouterr().out
    return scripts[shell]


def complete(text: str, *words: str) -> set[str]:
    """What bash offers for the last of the words."""
    quoted = " ".join(f"'{word}'" for word in words)
    asked = f"{text}\nCOMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}\n"
    asked += '$(complete -p ntksap | sed "s/.*-F \\([^ ]*\\).*/\\1/")\nprintf "%s\\n" "${COMPREPLY[@]}"'
    found = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=True)
    assert found.stderr == ""
    return set(found.stdout.split())


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_options_and_choices(capsys, scripts):
    text = script(capsys, scripts, "bash")
    assert complete(text, "ntksap", "") >= set(COMMANDS)
    assert complete(text, "ntksap", "comp") == {"compare", "completion"}
    assert complete(text, "ntksap", "prune", "--spars") == {"--sparsity"}
    assert "--log" in complete(text, "ntksap", "train", "--")
    assert complete(text, "ntksap", "train", "--places", "") == {"score", "random", "balanced"}


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
def test_fish_completes_commands_options_and_choices(capsys, scripts, tmp_path):
    (tmp_path / "ntksap.fish").write_text(script(capsys, scripts, "fish"))

    def offered(words: str) -> set[str]:
        asked = ["fish", "--no-config", "-c", f"source ntksap.fish; complete -C '{words}'"]
        found = subprocess.run(asked, capture_output=True, text=True, check=True, cwd=tmp_path)
        return {line.split("\t")[0] for line in found.stdout.splitlines()}

    assert offered("ntksap ") >= set(COMMANDS)
    assert offered("ntksap comp") == {"compare", "completion"}
    assert offered("ntksap prune --spars") == {"--sparsity"}


@pytest.mark.parametrize(("shell", "sign"), [("zsh", "#compdef ntksap"), ("fish", "complete --no-files --command")])
def test_other_shells_have_their_script(capsys, scripts, shell, sign):
    text = script(capsys, scripts, shell)
    assert sign in text
    assert "--sparsity" in text


def test_an_unknown_shell_is_refused_with_the_known_ones(capsys):
    with pytest.raises(SystemExit) as end:
        main(["completion", "csh"])
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert all(shell in error for shell in ("csh", "bash", "zsh", "fish"))


def test_an_unknown_option_is_answered_with_the_nearest(capsys):
    with pytest.raises(SystemExit) as end:
        main(["prune", "--sparsty", "0.9"])
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert "Unrecognized options: --sparsty" in error
    assert "Perhaps you meant:" in error
    assert "--sparsity" in error

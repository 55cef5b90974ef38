"""On a terminal of 60 columns nothing is cut and no word is broken."""

import json
import os
import pty
import re
import subprocess
import sys

import pytest

import ntksap
from ntksap.cli import main

SHAPE = ["--model", "resnet8", "--input-shape", "1", "8", "8"]
RUN = "import sys, json; from ntksap.cli import main; [main(words) for words in json.loads(sys.argv[1])]"


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """What commands print on a terminal of 60 columns, one after the other."""
    folder = tmp_path_factory.mktemp("narrow")
    model = ntksap.models.build("resnet8", input_shape=(1, 8, 8))
    masks = ntksap.prune(model, 0.9, "magnitude", input_shape=(1, 8, 8), floor=1)
    masks.info |= {"model": "resnet8", "input_shape": [1, 8, 8], "classes": 10}
    masks.save(folder / "masks")
    commands = [
        ["methods"],
        ["reproduce", "--list"],
        ["allocate", *SHAPE],
        ["diagnose", "masks", "--no-kernel"],
        ["cost", *SHAPE, "--masks", "masks"],
        ["spectrum", *SHAPE, "--methods", "random", "--inputs", "2", "--quiet"],
    ]
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "60", "TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, json.dumps(commands)], stdout=theirs, cwd=folder, env=environment
    )
    os.close(theirs)
    text = b""
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # so a terminal says that it was closed
            break
        if not piece:
            break
        text += piece
    assert process.wait() == 0
    return re.sub("\x1b\\[[0-9;]*m", "", text.decode().replace("\r\n", "\n"))


def test_no_line_is_too_long_and_nothing_is_cut(shown):
    assert max(map(len, shown.split("\n"))) <= 60
    assert "…" not in shown


def test_no_word_is_broken(shown, capsys):
    words = set(shown.split())
    main(["methods", "--json"])
    for method in json.loads(capsys.readouterr().out)["methods"]:
        assert {method["name"], *method["summary"].split()} <= words
    main(["reproduce", "--list", "--json"])
    for plan in json.loads(capsys.readouterr().out)["plans"]:
        assert {plan["name"], *plan["title"].split()} <= words
    main(["allocate", *SHAPE, "--json"])
    for layer in json.loads(capsys.readouterr().out)["layers"]:
        assert {layer["name"], f"{layer['kept']:,}/{layer['total']:,}"} <= words
    assert {"condition:", "distance:", "shape:"} <= words


def test_a_table_that_fits_is_a_table(capsys):
    main(["allocate", *SHAPE])
    lines = capsys.readouterr().out.split("\n")
    assert lines[0].split() == ["layer", "shape", "kept/total", "density"]
    assert len({len(line) for line in lines if line}) == 1

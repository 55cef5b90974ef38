"""Plans that take seconds: small networks on digits, written as files like those that come with the package."""

from collections.abc import Sequence
from pathlib import Path

from ntksap.paper.bench import Bench
from ntksap.runs.comparison import Outcome
from ntksap.runs.folder import Place
from ntksap.runs.local_sweep import Work
from ntksap.runs.settings import Settings

PANEL = """
[[panels]]
name = "digits"
model = "lenet-300-100"
data = "digits"
input_shape = [1, 8, 8]
classes = 10
images = 1437
recipe = "quick"
recipe_settings = { epochs = 2, channels_last = false }
"""


def small_plan(folder: Path, kind: str, body: str = "", head: str = "", panel: str = PANEL) -> Path:
    path = folder / f"small-{kind}.toml"
    path.write_text(f'title = "small"\nwhere = "table 0"\nkind = "{kind}"\n{head}\n{panel}\n{body}\n')
    return path


def in_this_process(settings: Sequence[Settings], root: Path, place: Place, work: Work) -> Outcome:
    """What a sweep does, without the seconds that a new process needs to start."""
    return Outcome({one.name: work(one, root, place, lambda progress: None) for one in settings}, {})


def small_bench(out: Path, data_dir: Path | None = None) -> Bench:
    return Bench(out, Place(data_dir), in_this_process)

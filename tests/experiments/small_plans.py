"""Plans that take seconds: small networks on digits, written as files like those that come with the package."""

from pathlib import Path

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

"""The two layers: the core needs torch, numpy and safetensors; the lab, which trains and compares, needs more."""

LAB = {
    "tyro",
    "rich",
    "matplotlib",
    "jinja2",
    "markupsafe",
    "sklearn",
    "scipy",
    "PIL",
    "fsspec",
    "filelock",
    "tomli_w",
    "tomli",
}
"""What ``pip install 'ntksap[lab]'`` brings, by the names that are imported."""


def say_what_is_missing(what: str, error: ModuleNotFoundError) -> str | None:
    """Return the sentence to print for a module of the lab that is missing; None if it is any other module."""
    name = (error.name or "").split(".")[0]
    return f"{what} needs {name}: pip install 'ntksap[lab]'" if name in LAB else None

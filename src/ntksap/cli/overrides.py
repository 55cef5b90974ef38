"""Options that are typed elsewhere (a method's score function, the fields of `Recipe`), offered on the command line.

Each becomes a flag whose default is "not given"; what is given overrides. So a new method or recipe setting needs no
change here.
"""

import ast
import inspect
import textwrap
from collections.abc import Sequence
from dataclasses import field, fields, make_dataclass
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import tyro

from ntksap.methods import METHODS
from ntksap.training import Recipe


def pick_given(overrides: object) -> dict[str, Any]:
    """Return what the user has set."""
    values = {f.name: getattr(overrides, f.name) for f in fields(overrides)}  # type: ignore[arg-type]
    return {name: value for name, value in values.items() if value is not None}


def spell_out_flags(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with ``--flag`` as ``--flag True`` and ``--no-flag`` as ``--flag False``.

    This is for the overrides alone, which have three states and therefore take a value.
    """
    spelled: list[str] = []
    for index, argument in enumerate(arguments):
        name = argument.removeprefix("--").replace("_", "-")
        following = arguments[index + 1] if index + 1 < len(arguments) else ""
        if argument.startswith("--") and name in _FLAGS and following not in ("True", "False"):
            spelled += [f"--{name}", "True"]
        elif argument.startswith("--") and name.removeprefix("no-") in _FLAGS and name.startswith("no-"):
            spelled += [f"--{name.removeprefix('no-')}", "False"]
        else:
            spelled.append(argument)
    return spelled


def _flag(name: str, kind: Any, help: str, hint: str) -> tuple[str, Any, Any]:
    if get_origin(kind) is Literal:
        metavar = "|".join(get_args(kind))
    elif get_origin(kind) is tuple:
        metavar = f"{get_args(kind)[0].__name__.upper()} …"
    else:
        metavar = "[True|False]" if kind is bool else kind.__name__.upper()
    if kind is bool:
        _FLAGS.add(name.replace("_", "-"))
    described = tyro.conf.arg(help=help, help_behavior_hint=hint, metavar=metavar)
    return name, Annotated[kind | None, described], field(default=None)


def _method_options() -> type[Any]:
    defaults: dict[str, dict[Any, list[str]]] = {}
    options = {}
    for method in METHODS.values():
        for option in method.options.values():
            defaults.setdefault(option.name, {}).setdefault(option.default, []).append(method.name)
            options[option.name] = option
    columns = [
        _flag(
            name,
            option.type,
            option.help[0].upper() + option.help[1:] + ".",
            "; ".join(f"({', '.join(users)}; default: {default})" for default, users in defaults[name].items()),
        )
        for name, option in options.items()
    ]
    return make_dataclass("MethodOptions", columns, frozen=True)


def _recipe_overrides() -> type[Any]:
    kinds, texts = get_type_hints(Recipe), _field_texts(Recipe)
    columns = [
        # A method has an option of the same name (inputs per draw), so the recipe's is spelled out.
        _flag(_RENAMED.get(f.name, f.name), kinds[f.name], texts[f.name], "(default: the recipe's)")
        for f in fields(Recipe)
    ]
    return make_dataclass("RecipeOverrides", columns, frozen=True)


def pick_recipe_settings(overrides: object) -> dict[str, Any]:
    """Return the settings of a recipe that the user has set."""
    own = {flag: name for name, flag in _RENAMED.items()}
    return {own.get(name, name): value for name, value in pick_given(overrides).items()}


def _field_texts(cls: type) -> dict[str, str]:
    """Return the sentence that stands under each field of a class."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    texts = {}
    for statement, following in zip(body.body, body.body[1:], strict=False):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            assert isinstance(following, ast.Expr)
            assert isinstance(following.value, ast.Constant)
            texts[statement.target.id] = str(following.value.value)
    return texts


_FLAGS: set[str] = set()
_RENAMED = {"batch": "train_batch", "schedule": "lr_schedule"}

MethodOptions: type[Any] = _method_options()
RecipeOverrides: type[Any] = _recipe_overrides()

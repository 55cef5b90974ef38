"""A recipe: which indices of which tensors are kept, so that the smaller module can be made again."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from ntksap._base import InputError, MaskError, write_atomically
from ntksap.compaction.slice import cut, sliced
from ntksap.net import unwrap
from ntksap.pruning import Masks

_FORMAT = "ntksap-compact"


@dataclass(frozen=True)
class Recipe:
    """How a module is made smaller.

    Attributes:
        kept: {parameter or buffer: {dimension: the indices that are kept}}; what is not named stays whole.
        attributes: {path of a submodule: {attribute: value}}.
        folded: {bias: what is added to it for removed channels that were constant}, of the bias's old shape.
        shapes: {parameter or buffer: its shape before}.
    """

    kept: Mapping[str, Mapping[int, Tensor]]
    attributes: Mapping[str, Mapping[str, Any]]
    folded: Mapping[str, Tensor] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def apply(self, model: nn.Module, masks: Mapping[str, Tensor] | None = None) -> nn.Module:
        """Return a smaller copy of ``model``, its weights multiplied by ``masks`` if they are given.

        Raises `MaskError` if the recipe is for another model.
        """
        model = unwrap(model)
        self.check(model)
        own = dict(model.named_parameters()) | dict(model.named_buffers())
        with torch.no_grad():
            tensors = {name: own[name] * mask.to(own[name].device) for name, mask in (masks or {}).items()}
            for name, more in self.folded.items():
                value = tensors.get(name, own[name])
                tensors[name] = (value.double() + more.to(value.device)).to(value.dtype)
        return cut(model, self.kept, self.attributes, tensors)

    def check(self, model: nn.Module) -> None:
        """Raise `MaskError` unless every tensor in the recipe is one of ``model``, with its shape."""
        own = dict(model.named_parameters()) | dict(model.named_buffers())
        for name, shape in self.shapes.items():
            found = tuple(own[name].shape) if name in own else None
            if found != tuple(shape):
                raise MaskError(
                    f"this recipe is for another model: {name!r} has shape {tuple(shape)} there, {found or 'none'} here"
                )

    def masks(self, masks: Mapping[str, Tensor]) -> Masks:
        """Return the masks for the smaller module, cut from those for the whole one."""
        return Masks({name: sliced(mask, self.kept.get(name, {})) for name, mask in masks.items()})

    def optimizer_state(self, optimizer: torch.optim.Optimizer, model: nn.Module, small: nn.Module) -> dict[str, Any]:
        """Return the state of ``optimizer`` (of ``model``) cut for one of the same kind and groups over ``small``.

        Load it with ``load_state_dict`` into an optimizer that was given the parameters of ``small`` in the same
        order. Entries of the state with a parameter's shape are cut like the parameter. Raises `InputError` for other
        tensors of more than one element, such as factors of a preconditioner.
        """
        names = {id(p): name for name, p in unwrap(model).named_parameters()}
        order = [p for group in optimizer.param_groups for p in group["params"]]
        state = optimizer.state_dict()
        for place, entries in state["state"].items():
            name = names[id(order[place])]
            for key, value in entries.items():
                if isinstance(value, Tensor) and value.numel() > 1 and value.shape != order[place].shape:
                    raise InputError(
                        f"the optimizer's {key!r} for {name!r} has a shape of its own, {tuple(value.shape)}, which "
                        "cannot be cut; start a new optimizer"
                    )
            less = self.kept.get(name, {})
            state["state"][place] = {key: _cut_entry(value, less) for key, value in entries.items()}
        return state


def _cut_entry(value: Any, kept: Mapping[int, Tensor]) -> Any:
    """Return an entry of an optimizer's state for the smaller parameter; a count of steps is copied, never shared."""
    if not isinstance(value, Tensor):
        return value
    return (sliced(value, kept) if value.dim() else value).clone()


def save_recipe(recipe: Recipe, path: str | Path) -> None:
    """Write a recipe to a safetensors file, all of it or nothing."""
    tensors = {
        f"kept/{dim}/{name}": indices.contiguous()
        for name, less in recipe.kept.items()
        for dim, indices in less.items()
    }
    tensors |= {f"folded/{name}": value.contiguous() for name, value in recipe.folded.items()}
    shapes = {name: list(shape) for name, shape in recipe.shapes.items()}
    attributes = {path: {k: _plain(v) for k, v in values.items()} for path, values in recipe.attributes.items()}
    metadata = {"format": _FORMAT, "attributes": json.dumps(attributes), "shapes": json.dumps(shapes)}
    write_atomically(path, save(tensors, metadata))


def load_recipe(path: str | Path) -> Recipe:
    """Read a recipe from a file that `save_recipe` wrote; no code in the file can run."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != _FORMAT:
                raise MaskError(f"{path}: a safetensors file, but it holds no recipe of ours (format {_FORMAT!r})")
            kept: dict[str, dict[int, Tensor]] = {}
            folded = {}
            for key in file.keys():  # noqa: SIM118
                kind, _, rest = key.partition("/")
                if kind == "folded":
                    folded[rest] = file.get_tensor(key)
                else:
                    dim, _, name = rest.partition("/")
                    kept.setdefault(name, {})[int(dim)] = file.get_tensor(key)
        attributes = {
            p: {k: _restored(v) for k, v in values.items()} for p, values in json.loads(metadata["attributes"]).items()
        }
        shapes = {name: tuple(shape) for name, shape in json.loads(metadata["shapes"]).items()}
        return Recipe(kept, attributes, folded, shapes)
    except MaskError:
        raise
    except FileNotFoundError:
        raise MaskError(f"{path}: no such file; recipes are written by save_recipe") from None
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise MaskError(f"{path}: not a recipe, or truncated ({error}); write it again or copy it again") from error


def load_compact(model: nn.Module, recipe: Recipe | str | Path) -> nn.Module:
    """Return ``model`` (of the size before compaction) cut as ``recipe`` says; the model itself is not changed.

    Trained weights of the smaller module are then loaded with ``load_state_dict``. No pickle is read.
    """
    chosen = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    return chosen.apply(model)


def _plain(value: Any) -> Any:
    return {"tuple": list(value)} if isinstance(value, tuple) else value


def _restored(value: Any) -> Any:
    return tuple(value["tuple"]) if isinstance(value, dict) else value

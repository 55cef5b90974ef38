"""Untrained models from other packages, by what a user types: ``hf:CONFIG.json`` (transformers) and ``timm:NAME``.

Nothing is downloaded, and nothing is called except classes of transformers and models in timm's table: code that a
configuration brings along (``auto_map``) is not run.
"""

import difflib
import importlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ntksap._base import InputError
from ntksap.models.built import Built
from ntksap.pruning import MakeInputs

_TOKENS = 32  # in an input, unless --input-shape says otherwise


def build_hf(spec: str, num_classes: int | None, input_shape: Sequence[int] | None) -> Built:
    """Return the model of a configuration, ``CONFIG.json`` or ``CONFIG.json:CLASS``, with its own initial weights.

    The class is what the configuration names first in ``architectures``, or CLASS. ``num_classes`` and, for models of
    images, ``input_shape`` (C, H, W) replace what the configuration says. A model of tokens gets uniform ones, 32 per
    input or as many as ``input_shape`` says.
    """
    path, _, given = spec.partition(".json:")
    file = Path(path + ".json") if given else Path(spec)
    values = _read(file)
    transformers = _package("transformers", f"hf:{spec}", "ntksap[transformers]")
    kinds = transformers.CONFIG_MAPPING
    kind = values.pop("model_type", None)
    if not isinstance(kind, str) or kind not in kinds:
        raise _unknown(f"{file}: model_type", str(kind), "transformers", list(kinds))
    config = kinds[kind].from_dict(values)
    name = given or (config.architectures or [""])[0]
    if not name:
        raise InputError(f"{file} names no architecture: say which class it is for, such as hf:{file}:BertForMaskedLM")
    made: Any = getattr(transformers, name, None) if name.isidentifier() else None
    known = isinstance(made, type) and issubclass(made, transformers.PreTrainedModel)
    if not known:
        raise InputError(f"hf:{spec}: transformers {transformers.__version__} has no model class {name!r}")
    if num_classes is not None:
        config.num_labels = num_classes
    if made.main_input_name == "pixel_values":
        shape = tuple(input_shape or _image_shape(config, file))
        if len(shape) == 3:
            config.num_channels, config.image_size = shape[0], shape[1]
        return Built(made(config), shape)
    if made.main_input_name != "input_ids":
        if not input_shape:
            raise InputError(f"{name} takes {made.main_input_name}: give the shape of one, such as --input-shape 16000")
        return Built(made(config), tuple(input_shape))
    config.use_cache = False
    if config.pad_token_id is None:
        config.pad_token_id = 0  # without one, classifiers of sequences refuse batches
    length = tuple(input_shape or (min(_TOKENS, getattr(config, "max_position_embeddings", None) or _TOKENS),))
    if len(length) != 1:
        raise InputError(f"{name} takes tokens: --input-shape is their number, such as --input-shape 128")
    return Built(made(config), length, _tokens(config, length[0]))


def build_timm(name: str, num_classes: int | None, input_shape: Sequence[int] | None) -> Built:
    """Return a model from timm's table, untrained; ``num_classes`` and ``input_shape`` (C, H, W) as in its factory."""
    timm = _package("timm", f"timm:{name}", "timm")
    if not timm.is_model(name):  # also hf-hub:…, which would be fetched
        raise _unknown(f"timm:{name}: model", name, "timm", timm.list_models())
    more: dict[str, Any] = {} if num_classes is None else {"num_classes": num_classes}
    if input_shape:
        more["in_chans"] = input_shape[0]
    module: nn.Module = timm.create_model(name, pretrained=False, **more)
    return Built(module, tuple(input_shape or module.default_cfg["input_size"]))  # type: ignore[index]


HUBS: dict[str, Callable[[str, int | None, Sequence[int] | None], Built]] = {"hf": build_hf, "timm": build_timm}
"""What comes before the colon → (what comes after it, classes, shape of one input) → model."""


def _package(name: str, asked: str, install: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name:
            raise InputError(f"--model {asked} needs the package {name}: pip install '{install}'") from error
        raise InputError(f"--model {asked}: {name} cannot be imported here ({error})") from error
    except (ImportError, RuntimeError, AttributeError) as error:  # such as when timm's torchvision does not fit torch
        raise InputError(f"--model {asked}: {name} cannot be imported here ({str(error).splitlines()[0]})") from error


def _unknown(what: str, name: str, package: str, known: Sequence[str]) -> InputError:
    """Return the error for a name that a package does not know: with only the nearest one, since there are hundreds."""
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return InputError(f"{what} {name[:80]!r} is not one of the {len(known)} that {package} has here.{hint}")


def _read(file: Path) -> dict[str, Any]:
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{file} cannot be read as the configuration of a model, a JSON file: {error}") from error
    if not isinstance(values, dict):
        raise InputError(f"{file} is not the configuration of a model: it holds no JSON object")
    return values


def _image_shape(config: Any, file: Path) -> tuple[int, ...]:
    size = getattr(config, "image_size", None)
    if not size:
        raise InputError(f"{file} does not say how large images are: add --input-shape, such as 3 224 224")
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return getattr(config, "num_channels", 3), height, width


def _tokens(config: Any, length: int) -> MakeInputs:
    """Return a maker of uniform tokens, except the one for padding; the decoder gets some too, if there is one."""
    vocabulary, padding = config.vocab_size, config.pad_token_id

    def draw(count: int, generator: torch.Generator) -> Tensor:
        drawn = torch.randint(vocabulary - 1, (count, length), generator=generator, device="cpu")
        return drawn + (drawn >= padding) if 0 <= padding < vocabulary else drawn

    def make(count: int, generator: torch.Generator) -> dict[str, Tensor]:
        names = ["input_ids", "decoder_input_ids"] if config.is_encoder_decoder else ["input_ids"]
        return {name: draw(count, generator) for name in names}

    return make

"""Which model are the masks of a file for?"""

from ntksap._base import InputError
from ntksap.cli.options import ModelArguments
from ntksap.models import MODELS, model_named
from ntksap.pruning import Masks


def model_of(masks: Masks, given: ModelArguments, any_seed: bool) -> ModelArguments:
    """Return the model that masks are for: what the user says, else what the file says, if that can be trusted.

    A file may only name models of the table. Code to import and call comes from the user's own --model, never from a
    file.
    """
    info = masks.info
    name = given.model or info.get("model", "resnet20")
    if not given.model and not _in_table(name):
        own = isinstance(name, str) and ":" in name
        advice = f"If it is your own, and you trust it, add --model {name}" if own else "Say which it is: --model NAME"
        raise InputError(
            f"the mask file says that its model is {str(name)[:80]!r}, which is not in the table. {advice[:200]}"
        )
    shape, classes, seed = given.input_shape, given.classes, given.seed
    if shape is None and (said := info.get("input_shape")) is not None:
        if not isinstance(said, list) or not 0 < len(said) <= 8 or not all(_size(size, 4096) for size in said):
            raise InputError("the mask file gives no usable shape of one input: add --input-shape, such as 3 32 32")
        shape = tuple(said)
    if classes is None and (said := info.get("classes")) is not None:
        if not _size(said, 10**6):
            raise InputError("the mask file gives no usable number of classes: add --classes")
        classes = said
    if any_seed:
        seed = info.get("seed", 0)
        if type(seed) is not int or not 0 <= seed < 2**63:
            raise InputError("the mask file gives no usable seed: add --seed")
    chosen = ModelArguments(name, classes, shape, seed)
    if ":" not in name:  # before memory is taken for a model that may be huge if the file says so
        masks.check(chosen.outline())
    return chosen


def _size(value: object, most: int) -> bool:
    return type(value) is int and 1 <= value <= most


def _in_table(name: object) -> bool:
    """Whether a name from a file is in the table, and no wider than the widest model there."""
    try:
        return isinstance(name, str) and model_named(name).width <= max(model.width for model in MODELS.values())
    except InputError:
        return False

"""How the command line reads an option that takes one of some words, or is not given."""

from typing import Literal, get_args, get_origin

from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

CHOICES = ConstructorRegistry()


@CHOICES.primitive_rule
def offer_words_alone(found: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[str | None] | None:
    """Offer the words of ``Literal[…] | None`` and not None, which stands for an option that is not given."""
    kinds = [kind for kind in get_args(found.type) if kind is not type(None)]
    if len(kinds) == len(get_args(found.type)) or [get_origin(kind) for kind in kinds] != [Literal]:
        return None
    words: tuple[str, ...] = get_args(kinds[0])
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=f"{{{','.join(words)}}}",
        instance_from_str=lambda given: given[0],
        is_instance=lambda value: value is None or value in words,
        str_from_instance=lambda value: [str(value)],
        choices=words,
    )

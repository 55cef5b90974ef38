"""Words in messages."""


def counted(count: int, noun: str) -> str:
    """Return a number of things.

    >>> counted(1, "epoch"), counted(1600, "epoch")
    ('1 epoch', '1,600 epochs')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"

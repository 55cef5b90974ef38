"""Allocations: how many weights each layer keeps. They need shapes only."""

import fnmatch
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from ntksap._base import InputError
from ntksap.net import WeightView, parts_of
from ntksap.pruning.apportion import apportion
from ntksap.pruning.schedules import kept_of
from ntksap.pruning.table import layer_table

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
"""The shape of each prunable weight by name, in the order of the module."""

Quotas: TypeAlias = Callable[[Shapes], dict[str, float]]
"""A rule: how many weights a layer should keep in proportion to others. Scaled to the density, cut at full layers."""

Floor: TypeAlias = int | float
"""At least this many weights (an int), or at least this share of them (a float below 1, rounded down)."""


class Allocation(Mapping[str, int]):
    """How many weights each layer keeps: a mapping from a parameter's own dotted name to a number.

    >>> plan = Allocation({"0.weight": 20, "2.weight": 8}, {"0.weight": (16, 8), "2.weight": (2, 16)}, {"rule": "erk"})
    >>> plan["2.weight"], plan.kept, plan.total, plan.density
    (8, 28, 160, 0.175)
    """

    def __init__(self, kept: Mapping[str, int], shapes: Shapes, info: Mapping[str, Any] | None = None) -> None:
        """Take the counts, the shapes of the same layers, and what is worth knowing (must be valid JSON)."""
        for name, count in kept.items():
            if not 0 <= count <= math.prod(shapes[name]):
                raise InputError(f"layer {name!r} has {math.prod(shapes[name])} weights and cannot keep {count}")
        self._kept = {name: int(count) for name, count in kept.items()}
        self.shapes = {name: tuple(shapes[name]) for name in kept}
        self.info = dict(info or {})

    def __getitem__(self, name: str) -> int:
        return self._kept[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def kept(self) -> int:
        """How many weights are kept."""
        return sum(self._kept.values())

    @property
    def total(self) -> int:
        """How many weights could be pruned."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    @property
    def density(self) -> float:
        """Kept ÷ total."""
        return self.kept / self.total

    @property
    def sparsity(self) -> float:
        """1 − density."""
        return 1 - self.density

    def densities(self) -> dict[str, float]:
        """Return kept ÷ total of each layer."""
        return {
            name: count / math.prod(self.shapes[name]) for name, count in self.items() if math.prod(self.shapes[name])
        }

    def layers(self) -> list[dict[str, Any]]:
        """Return name, shape, kept and total of each layer, as plain values."""
        return [
            {"name": name, "shape": list(shape), "kept": self[name], "total": math.prod(shape)}
            for name, shape in self.shapes.items()
        ]

    def __repr__(self) -> str:
        return f"Allocation({len(self)} layers, kept {self.kept:,} of {self.total:,}, density {self.density:.4%})"

    def __str__(self) -> str:
        return layer_table((name, shape, self[name]) for name, shape in self.shapes.items())


def uniform(shapes: Shapes) -> dict[str, float]:
    """The same density everywhere: kept ∝ the layer's size."""
    return {name: float(math.prod(shape)) for name, shape in shapes.items()}


def equal(shapes: Shapes) -> dict[str, float]:
    """The same number everywhere, at most a layer's size."""
    return dict.fromkeys(shapes, 1.0)


def erk(shapes: Shapes) -> dict[str, float]:
    """Erdős–Rényi kernel: density ∝ Σ dims / Π dims of the weight, so kept ∝ Σ dims; layers above 1 are dense."""
    return {name: float(sum(shape)) for name, shape in shapes.items()}


def erk_logits(shapes: Shapes, density: float, logits: Collection[str]) -> dict[str, float]:
    """Like `erk`, with the square root of the density in layers that make logits (`ntksap.net.logit_layers`).

    With r_l = Σ dims / Π dims, layer l of N_l weights keeps

        N_l · min(1, (c·r_l)^p_l),   p_l = ½ where l is one of ``logits``, else 1,

    and c is such that all of them together keep ``density``. A logit of attention is a product of two pruned layers,
    queries and keys: at √d each, the share d of its terms is kept, just as in a layer that stands alone.
    """
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    ratios = {name: sum(shape) / sizes[name] if sizes[name] else 0.0 for name, shape in shapes.items()}

    def kept(c: float) -> dict[str, float]:
        return {n: sizes[n] * min(1.0, (c * r) ** (0.5 if n in logits else 1.0)) for n, r in ratios.items()}

    low, high = 0.0, 1 / min((r for r in ratios.values() if r), default=1.0)  # where all are dense
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if sum(kept(middle).values()) < density * sum(sizes.values()) else (low, middle)
    return kept(high)


RULES: dict[str, Quotas] = {"uniform": uniform, "equal": equal, "erk": erk}
"""The rules that need shapes alone. `ntksap.allocate` also knows ``"erk+"`` (see `classifier_of`), ``"erk-logits"``,
``"ntk-sap"``, and the methods."""


def allocation_of(
    shapes: Shapes,
    density: float | None,
    quotas: Mapping[str, float],
    *,
    fixed: Mapping[str, int] | None = None,
    floor: Floor = 1,
    block_floor: Floor = 0,
    blocks: Sequence[str] | None = None,
    info: Mapping[str, Any] | None = None,
) -> Allocation:
    """Return the allocation in proportion to ``quotas`` that keeps exactly round(density · total) weights.

    Args:
        shapes: those of the prunable weights.
        density: kept ÷ total; None where ``fixed`` names every layer.
        quotas: {name: how much, in proportion to the others}.
        fixed: layers whose number is given; the others share what is left.
        floor: the least that each layer keeps (a smaller layer: all of it). Not for the fixed ones.
        block_floor: the least that each block keeps.
        blocks: patterns of names, one for each block, or None: see `blocks_of`.
        info: what is worth knowing about it.
    """
    fixed = fixed or {}
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    free = [name for name in shapes if name not in fixed]
    taken = sum(fixed.values())
    kept = taken if density is None else kept_of(density, sum(sizes.values()))
    least = {name: fixed[name] if name in fixed else floor_of(floor, sizes[name]) for name in shapes}
    most = {name: fixed.get(name, sizes[name]) for name in shapes}
    if density is None and free:
        raise InputError(f"without a sparsity every layer must be named; {free[0]!r} is not ({len(free)} are not)")
    if not sum(least.values()) <= kept <= sum(most.values()):
        raise InputError(
            f"{kept} weights are to be kept, but the layers with a given number and the floors allow "
            f"{sum(least.values())} to {sum(most.values())}: change them, or the sparsity"
        )
    groups: list[tuple[list[int], int]] = []
    if block_floor:
        index = {name: number for number, name in enumerate(shapes)}
        for members in blocks_of(shapes, blocks).values():
            bound = min(floor_of(block_floor, sum(sizes[name] for name in members)), sum(most[n] for n in members))
            groups.append(([index[name] for name in members], max(bound, sum(least[n] for n in members))))
        inside = {number for part, _ in groups for number in part}
        needed = sum(b for _, b in groups) + sum(least[n] for i, n in enumerate(shapes) if i not in inside)
        if needed > kept:
            raise InputError(f"block_floor={block_floor} needs {needed} weights, but only {kept} are kept: lower it")
    shares = apportion(kept, [quotas.get(name, 0.0) for name in shapes], [*least.values()], [*most.values()], groups)
    return Allocation(dict(zip(shapes, shares, strict=True)), shapes, info)


def floor_of(floor: Floor, size: int) -> int:
    """Return the number that a floor means in a layer of this size: itself, or a share of the size; never more.

    >>> floor_of(4, 100), floor_of(0.05, 100), floor_of(4, 3)
    (4, 5, 3)
    """
    if isinstance(floor, bool) or floor < 0 or (isinstance(floor, float) and floor >= 1 and not floor.is_integer()):
        raise InputError(f"a floor is a number of weights, or a share of them below 1, not {floor!r}")
    return min(size, int(floor) if floor >= 1 else math.floor(floor * size + 1e-9))


def named_counts(shapes: Shapes, given: Mapping[str, float]) -> dict[str, int]:
    """Return the number of weights of each layer that a user's mapping names.

    A key is a name or a pattern (``"*.q_proj.weight"``); a layer's own name takes precedence, then the first pattern
    that matches it. A value is a density (a float up to 1) or a number of weights (an int). A key that matches nothing
    is an error, as a misspelt name would be.
    """
    counts = {}
    for name, shape in shapes.items():
        key = name if name in given else next((key for key in given if fnmatch.fnmatchcase(name, key)), None)
        if key is not None:
            counts[name] = _count(key, given[key], math.prod(shape))
    for key in given:
        if not any(name == key or fnmatch.fnmatchcase(name, key) for name in shapes):
            raise InputError(f"{key!r} matches no prunable layer; they are {', '.join(shapes)}")
    return counts


def _count(key: str, value: float, size: int) -> int:
    if isinstance(value, float) and 0 <= value <= 1:
        return round(value * size)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= size:
        return value
    raise InputError(
        f"{key!r} keeps a density (a float from 0 to 1) or a number of weights up to {size}, not {value!r}"
    )


def blocks_of(shapes: Shapes, patterns: Sequence[str] | None = None) -> dict[str, list[str]]:
    """Return the layers of each block by the block's name; layers outside all blocks are left out.

    Without patterns, a block is a numbered part of the module (``layers.3``, ``blocks.0``) with two or more prunable
    layers, the innermost one: the residual blocks of most networks. Each pattern (``"encoder.layers.0.*"``) makes one
    block.

    >>> names = ["stem.weight", "h.0.q.weight", "h.0.mlp.0.weight", "h.0.mlp.2.weight", "h.1.q.weight", "h.1.k.weight"]
    >>> list(blocks_of(dict.fromkeys(names, (1, 1))))
    ['h.0', 'h.1']
    """
    found: dict[str, list[str]] = {}
    if patterns is not None:
        for name in shapes:
            key = next((pattern for pattern in patterns if fnmatch.fnmatchcase(name, pattern)), None)
            if key is not None:
                found.setdefault(key, []).append(name)
        return found
    prefixes = {name: [_prefix(name, i) for i, part in enumerate(name.split(".")) if part.isdigit()] for name in shapes}
    sizes: dict[str, int] = {}
    for chain in prefixes.values():
        for prefix in chain:
            sizes[prefix] = sizes.get(prefix, 0) + 1
    for name, chain in prefixes.items():
        inner = [prefix for prefix in chain if sizes[prefix] > 1]
        if inner:
            found.setdefault(inner[-1], []).append(name)
    return found


def _prefix(name: str, index: int) -> str:
    return ".".join(name.split(".")[: index + 1])


def shared(counts: Mapping[str, int], views: Mapping[str, WeightView]) -> dict[str, int]:
    """Return what each layer keeps, given what each weight keeps: experts in one weight share that evenly.

    >>> shared({"up": 5}, {"up": WeightView((2, 6, 4), stack=True)})
    {'up[0]': 3, 'up[1]': 2}
    """
    found: dict[str, int] = {}
    for name, count in counts.items():
        parts = parts_of(name, views[name])
        more = count % max(1, len(parts))
        found |= {part: count // len(parts) + (index < more) for index, part in enumerate(parts)}
    return found


def classifier_of(shapes: Shapes) -> str:
    """Return the name of the classifier: the last matrix."""
    matrices = [name for name, shape in shapes.items() if len(shape) == 2]
    if not matrices:
        raise InputError("erk+ keeps the classifier dense, and no prunable layer is a matrix: use erk")
    return matrices[-1]

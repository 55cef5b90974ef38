"""Recurrent layers, step by step: each use of a weight is treated as if it were a different weight."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ntksap.methods.moments.activations import elementwise, relu
from ntksap.methods.moments.linear import add, linear, mul, rsub
from ntksap.methods.moments.shapes import join
from ntksap.methods.moments.table import moments_of, rule
from ntksap.methods.moments.value import Moments

State: TypeAlias = tuple[Moments, ...]
Cell: TypeAlias = Callable[..., State]
"""(input, state, w_ih, w_hh, b_ih, b_hh) → state, of which the first part is the output."""

_sigmoid, _tanh = partial(elementwise, torch.sigmoid), partial(elementwise, torch.tanh)


def _lstm(x: Moments, state: State, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> State:
    gates = add(linear(x, w_ih, b_ih), linear(state[0], w_hh, b_hh))
    enter, forget, new, leave = _parts(gates, 4)
    cell = add(mul(_sigmoid(forget), state[1]), mul(_sigmoid(enter), _tanh(new)))
    return mul(_sigmoid(leave), _tanh(cell)), cell


def _gru(x: Moments, state: State, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> State:
    entered, before = _parts(linear(x, w_ih, b_ih), 3), _parts(linear(state[0], w_hh, b_hh), 3)
    reset, update = (_sigmoid(add(a, b)) for a, b in zip(entered[:2], before[:2], strict=True))
    new = _tanh(add(entered[2], mul(reset, before[2])))
    return (add(mul(rsub(update, 1.0), new), mul(update, state[0])),)


def _rnn(
    bend: Callable[[Moments], Moments], x: Moments, state: State, w_ih: Any, w_hh: Any, b_ih: Any = None,
    b_hh: Any = None,
) -> State:  # fmt: skip
    return (bend(add(linear(x, w_ih, b_ih), linear(state[0], w_hh, b_hh))),)


def _parts(x: Moments, count: int) -> list[Moments]:
    return [x.each(lambda field, i=i: field.chunk(count, -1)[i]) for i in range(count)]  # type: ignore[misc]


_CELLS: dict[str, Cell] = {
    "lstm": _lstm,
    "gru": _gru,
    "rnn_tanh": partial(_rnn, _tanh),
    "rnn_relu": partial(_rnn, relu),
}


def _sequence(
    cell: Cell,
    x: Moments,
    hx: Any,
    params: Sequence[Any],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Moments, ...]:
    """torch.lstm and the like: (output, last states…), each state stacked over layers and directions."""
    if isinstance(hx, Tensor) and not hx.is_floating_point():
        raise NotImplementedError("packed sequences have no rule")
    states = [moments_of(part) for part in (hx if isinstance(hx, tuple | list) else [hx])]
    ways = 1 + bidirectional
    each = len(params) // (num_layers * ways)
    steps = 1 if batch_first else 0
    last: list[State] = []
    for layer in range(num_layers):
        outputs = []
        for way in range(ways):
            own = params[(layer * ways + way) * each :][:each]
            start = len(last)
            now = tuple(part.each(lambda f, i=start: f[i]) for part in states)  # type: ignore[misc]
            times = range(x.like.shape[steps])
            seen: dict[int, Moments] = {}
            for time in reversed(times) if way else times:
                here = x.each(lambda f, t=time: f.select(steps, t))  # type: ignore[misc]
                now = cell(here, now, *own[: 4 if has_biases else 2])
                if each in (3, 5):  # a projection of the output
                    now = (linear(now[0], own[-1]), *now[1:])
                seen[time] = now[0]
            last.append(now)
            outputs.append(join(torch.stack, [seen[time] for time in times], steps))
        x = join(torch.cat, outputs, -1) if bidirectional else outputs[0]
    return x, *(join(torch.stack, [now[i] for now in last], 0) for i in range(len(states)))


for _name, _cell in _CELLS.items():
    rule(_name)(partial(_sequence, _cell))


@rule("lstm_cell")
def lstm_cell(x: Moments, hx: Sequence[Any], w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> State:
    """nn.LSTMCell."""
    return _lstm(x, tuple(moments_of(part) for part in hx), w_ih, w_hh, b_ih, b_hh)


def _one(cell: Cell, x: Moments, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Moments:
    return cell(x, (moments_of(hx),), w_ih, w_hh, b_ih, b_hh)[0]


for _name in ("gru", "rnn_tanh", "rnn_relu"):
    rule(f"{_name}_cell")(partial(_one, _CELLS[_name]))

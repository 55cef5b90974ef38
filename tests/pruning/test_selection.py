import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ntksap import InputError, ScoreError, select
from ntksap.pruning.threshold import nth_largest

# few distinct values, so that ties are everywhere
layers = st.dictionaries(
    st.sampled_from("abcd"), st.lists(st.sampled_from([0.0, -0.0, 1.0, 2.0, -3.0, 1e30]), max_size=9), min_size=1
).filter(lambda d: any(d.values()))


def tensors(scores):
    return {name: torch.tensor(values) for name, values in scores.items()}


@given(layers, st.data())
def test_exactly_k_the_largest_and_ties_to_the_lower_index(scores, data):
    total = sum(len(v) for v in scores.values())
    kept = data.draw(st.integers(1, total))
    masks = select(tensors(scores), kept)
    # the slow twin: a stable sort of everything
    entries = [(-value, position) for position, value in enumerate(v for values in scores.values() for v in values)]
    expected = {position for _, position in sorted(entries)[:kept]}
    flat = torch.cat([masks[name].flatten() for name in scores])
    assert set(flat.nonzero().flatten().tolist()) == expected


@given(layers, st.data())
def test_nested_within_earlier_masks(scores, data):
    total = sum(len(v) for v in scores.values())
    first = data.draw(st.integers(1, total))
    second = data.draw(st.integers(1, first))
    scope = data.draw(st.sampled_from(["global", "layer"]))
    earlier = select(tensors(scores), first, scope=scope)
    other = {
        name: torch.randn(len(values), generator=torch.Generator().manual_seed(0)) for name, values in scores.items()
    }
    later = select(other, second, within=earlier, scope=scope)
    assert sum(int(m.sum()) for m in later.values()) == second
    assert all((later[name] <= earlier[name]).all() for name in scores)


@given(layers, st.data())
def test_the_floor_is_kept_and_the_count_stays_exact(scores, data):
    sizes = [len(v) for v in scores.values()]
    floor = data.draw(st.integers(0, 4))
    least = sum(min(floor, size) for size in sizes)
    kept = data.draw(st.integers(max(1, least), sum(sizes)))
    scope = data.draw(st.sampled_from(["global", "layer"]))
    masks = select(tensors(scores), kept, floor=floor, scope=scope)
    assert sum(int(m.sum()) for m in masks.values()) == kept
    assert all(int(masks[name].sum()) >= min(floor, len(values)) for name, values in scores.items())


@given(layers, st.data())
def test_per_layer_scope_keeps_each_layers_share(scores, data):
    sizes = {name: len(values) for name, values in scores.items()}
    kept = data.draw(st.integers(1, sum(sizes.values())))
    masks = select(tensors(scores), kept, scope="layer")
    assert sum(int(m.sum()) for m in masks.values()) == kept
    for name, mask in masks.items():
        assert abs(int(mask.sum()) - kept * sizes[name] / sum(sizes.values())) < 1


def test_scalars_and_shapes():
    scores = {"scalar": torch.tensor(5.0), "matrix": torch.arange(6.0).view(2, 3), "empty": torch.zeros(0, 3)}
    masks = select(scores, 2)
    assert masks["scalar"].shape == ()
    assert bool(masks["scalar"])
    assert masks["matrix"].tolist() == [[False, False, False], [False, False, True]]
    assert masks["empty"].shape == (0, 3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_every_floating_dtype_and_memory_format(dtype):
    scores = torch.randperm(240, generator=torch.Generator().manual_seed(0)).view(2, 3, 5, 8).to(dtype)
    masks = select({"w": scores.to(memory_format=torch.channels_last)}, 100)
    assert int(masks["w"].sum()) == 100
    assert scores[masks["w"]].min() > scores[~masks["w"]].max()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_scores_that_cannot_be_ranked_name_the_layer_and_the_way_out(bad):
    with pytest.raises(ScoreError, match=r"'deep': 1 of 2 .* precision='float64'"):
        select({"fine": torch.ones(3), "deep": torch.tensor([1.0, bad])}, 2)
    with pytest.raises(ScoreError, match=r"'deep'.*overflow float64"):
        select({"deep": torch.tensor([1.0, bad], dtype=torch.float64)}, 1)


def test_impossible_requests():
    scores = {"a": torch.ones(3), "b": torch.ones(4)}
    for kept in (0, 8):
        with pytest.raises(InputError, match=f"cannot keep {kept} of 7"):
            select(scores, kept)
    with pytest.raises(InputError, match="needs 6 weights, but only 5"):
        select(scores, 5, floor=3)
    with pytest.raises(InputError, match="scope"):
        select(scores, 5, scope="block")


# signs, zeros of both signs, neighbours, the smallest and the largest numbers there are
extremes = [0.0, -0.0, 1.0, -1.0, 1.0 + 2**-23, 1.0 + 2**-52, 5e-324, -5e-324, 1e-45, 1e-310, 3e38, -3e38, 1.7e308]


@given(st.data())
def test_the_threshold_is_that_of_a_sort(data):
    kind = data.draw(st.sampled_from([np.float32, np.float64]))
    numbers = st.sampled_from(extremes) | st.floats(-1e30, 1e30)
    drawn = data.draw(st.lists(st.lists(numbers, max_size=8), min_size=1, max_size=4).filter(any))
    with np.errstate(over="ignore"):
        values = [np.nan_to_num(np.array(part, np.float64).astype(kind)) for part in drawn]
    free = [data.draw(st.none() | st.just(np.arange(v.size) % 3 > 0)) for v in values]
    pool = np.sort(np.concatenate([v if f is None else v[f] for v, f in zip(values, free, strict=True)]))[::-1]
    for count in range(1, pool.size + 1):
        found = nth_largest(values, free, count)
        assert found.dtype == kind
        assert found == pool[count - 1]


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_the_threshold_of_more_values_than_are_counted_at_a_time(kind):
    values = np.random.default_rng(0).normal(size=300_001).astype(kind)
    free = np.arange(values.size) % 7 > 2
    for count in (1, 1000, 150_000):
        assert nth_largest([values], [None], count) == np.sort(values)[-count]
        assert nth_largest([values], [free], count) == np.sort(values[free])[-count]


def test_scores_of_different_precision_are_ranked_together():
    scores = {"a": torch.tensor([1.0, 3.0]), "b": torch.tensor([2.0, 1.0 + 2**-40], dtype=torch.float64)}
    assert {n: m.tolist() for n, m in select(scores, 3).items()} == {"a": [False, True], "b": [True, True]}


@pytest.mark.slow
def test_a_hundred_million_weights():
    generator = torch.Generator().manual_seed(0)
    scores = {str(i): torch.rand(25_000_000, generator=generator) for i in range(4)}
    masks = select(scores, 1_800_000)
    assert sum(int(m.sum()) for m in masks.values()) == 1_800_000
    lowest = min(float(scores[n][masks[n]].min()) for n in scores)
    highest = max(float(scores[n][~masks[n]].max()) for n in scores)
    assert lowest >= highest
    assert lowest == pytest.approx(1 - 0.018, abs=1e-4)


@settings(max_examples=20)
@given(st.integers(1, 3000), st.data())
def test_against_numpy_on_larger_arrays(size, data):
    values = np.random.default_rng(data.draw(st.integers(0, 99))).normal(size=size).astype(np.float32)
    kept = data.draw(st.integers(1, size))
    mask = select({"w": torch.from_numpy(values)}, kept)["w"].numpy()
    assert set(np.flatnonzero(mask)) == set(np.argsort(-values, kind="stable")[:kept])

"""Validation loss of small pruned language models: a byte-level Llama or GPT-2 on the sources of Python's library.

    python -m studies.transformers.language_model

carries out every run of the grid that is not in the results yet, about 20 s each. Needs the extra `transformers`.
"""

import itertools
import math
import statistics
import sysconfig
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

import ntksap
from ntksap._base import generator_of, global_seed
from studies.grid import Grid, Run

BYTES, LENGTH, BATCH, STEPS, LR = 256, 64, 16, 300, 3e-3
WIDTH, LAYERS = 96, 4
VALIDATION_BATCHES = 40
SEEDS = (0, 1, 2)

MAIN: dict[str, dict[str, Any]] = {
    "uniform": {"method": "random", "allocation": "uniform"},
    "erk": {"method": "random", "allocation": "erk"},
    "erk-logits": {"method": "random", "allocation": "erk-logits"},
}
OTHERS: dict[str, dict[str, Any]] = {
    "closed-form": {"method": "random", "allocation": "ntk-sap"},
    "ntk-sap": {"method": "ntk-sap", "init": "reset", "batch": 10},
    "ntk-sap-analytic": {"method": "ntk-sap-analytic", "scope": "global"},
    "magnitude": {"method": "magnitude"},
    "snip": {"method": "snip"},
    "equal": {"method": "random", "allocation": "equal"},
}
CANDIDATES: dict[str, dict[str, Any]] = {
    "ntk-sap-erk-logits": {"method": "ntk-sap", "init": "reset", "batch": 10, "allocation": "erk-logits"},
    "snip-erk-logits": {"method": "snip", "allocation": "erk-logits"},
    "closed-form-blocks": {"method": "random", "allocation": "ntk-sap", "block_share": 1.0},
    "erk-logits-balanced": {"method": "random", "allocation": "erk-logits", "places": "balanced"},
}
WAYS = {**MAIN, **OTHERS, **CANDIDATES}
"""What is compared: the keywords of `ntksap.prune`. With ``block_share`` every block keeps that share of its budget."""

DENSE = {"dense": {}, "thin": {"width": True}, "shallow": {"depth": True}}
"""Networks without masks: the whole one, and ones with fewer channels or layers, with as many weights as a pruned one
keeps."""


def text() -> Tensor:
    """Return the sources of the standard library as bytes, in the order of their names."""
    root = Path(sysconfig.get_path("stdlib"))
    files = sorted(path for path in root.glob("*.py") if path.is_file())
    return torch.tensor(list(b"\n".join(path.read_bytes() for path in files)), dtype=torch.uint8)


def build(family: str, seed: int, width: int = WIDTH, layers: int = LAYERS) -> nn.Module:
    """Return a Llama or a GPT-2 of this width and depth, drawn by the seed."""
    tokens = {"vocab_size": BYTES, "bos_token_id": 0, "eos_token_id": 0}
    with global_seed(seed, "model"):
        if family == "llama":
            heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": layers}
            sizes = {"hidden_size": width, "intermediate_size": round(8 / 3 * width), "max_position_embeddings": LENGTH}
            return transformers.LlamaForCausalLM(
                transformers.LlamaConfig(**tokens, **heads, **sizes, tie_word_embeddings=False, use_cache=False)
            )
        sizes = {"n_embd": width, "n_layer": layers, "n_head": 4, "n_positions": LENGTH}
        drop = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(**tokens, **sizes, **drop, use_cache=False))


def windows(data: Tensor, seed: int, *key: int | str) -> Iterator[Tensor]:
    """Yield batches (BATCH, LENGTH) of bytes from random places."""
    generator = generator_of(seed, *key)
    while True:
        starts = torch.randint(len(data) - LENGTH, (BATCH, 1), generator=generator)
        yield data[starts + torch.arange(LENGTH)].long()


def loss_of(output: Tensor, ids: Tensor) -> Tensor:
    """Return the mean loss of predicting each byte from those before it, in nats."""
    return nn.functional.cross_entropy(output[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def summed_loss(output: Tensor, ids: Tensor) -> Tensor:
    """Return the summed loss, as `ntksap.prune` wants it."""
    return loss_of(output, ids) * ids[:, 1:].numel()


def noise_inputs(batch: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Return random bytes, for the methods that need no data."""
    return {"input_ids": torch.randint(BYTES, (batch, LENGTH), generator=generator)}


def masks_for(model: nn.Module, way: dict[str, Any], sparsity: float, seed: int, rescale: bool, data: Tensor) -> Any:
    """Return the masks of one way to prune."""
    way = dict(way)
    share = way.pop("block_share", None)
    if share is not None:
        floor = share * (1 - sparsity)
        way["allocation"] = ntksap.allocate(
            model, sparsity, way["allocation"], inputs=noise_inputs, rescale=rescale, block_floor=floor
        )
    batches = windows(data, seed, "pruning")
    pruning_set = [({"input_ids": ids}, ids) for ids, _ in zip(batches, range(4), strict=False)]
    return ntksap.prune(
        model, sparsity, inputs=noise_inputs, data=pruning_set, loss=summed_loss, seed=seed, rescale=rescale, **way
    )


def trained(model: nn.Module, train: Tensor, seed: int, steps: int = STEPS) -> float:
    """Train the model and return the loss of its last steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.1)
    last: list[float] = []
    model.train()
    for step, ids in zip(range(steps), windows(train, seed, "training"), strict=False):
        rate = min((step + 1) / (0.1 * steps), 0.5 * (1 + math.cos(math.pi * step / steps)))
        for group in optimizer.param_groups:
            group["lr"] = LR * rate
        loss = loss_of(model(input_ids=ids).logits, ids)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        last = [*last[-49:], loss.item()]
    return sum(last) / len(last)


@torch.no_grad()
def validated(model: nn.Module, data: Tensor) -> float:
    """Return the mean loss on windows that are the same for every run."""
    model.eval()
    batches = zip(range(VALIDATION_BATCHES), windows(data, 0, "validation"), strict=False)
    losses = [loss_of(model(input_ids=ids).logits, ids).item() for _, ids in batches]
    return sum(losses) / len(losses)


def smaller(family: str, seed: int, sparsity: float, how: dict[str, Any]) -> nn.Module:
    """Return the dense network whose prunable weights are nearest in number to those that a pruned one keeps."""

    def count(model: nn.Module) -> int:
        return ntksap.allocate(model, 0.0, "uniform").total

    target = (1 - sparsity) * count(build(family, seed))
    sizes = (
        [{"width": width} for width in range(16, WIDTH + 1, 8)]
        if "width" in how
        else [{"layers": n} for n in range(1, LAYERS + 1)]
    )
    models = [build(family, seed, **size) for size in sizes]
    return min(models, key=lambda model: abs(count(model) - target)) if how else build(family, seed)


def carry_out(run: Run, train: Tensor, validation: Tensor) -> dict[str, Any]:
    """Return the run with its result."""
    start = time.perf_counter()
    if run["way"] in DENSE:
        model, facts = smaller(run["family"], run["seed"], run["sparsity"], DENSE[run["way"]]), {}
    else:
        model = build(run["family"], run["seed"])
        masks = masks_for(model, WAYS[run["way"]], run["sparsity"], run["seed"], run["rescale"], train)
        masks.attach(model)
        facts = {"kept": masks.kept, "total": masks.total, "empty": len(masks.collapsed)}
        facts["layers"] = {layer["name"]: layer["kept"] for layer in masks.layers()}
    facts["parameters"] = sum(p.numel() for p in model.parameters())
    facts["prune_seconds"] = round(time.perf_counter() - start, 1)
    train_loss = trained(model, train, run["seed"], run["steps"])
    return {
        **run,
        **facts,
        "train_loss": round(train_loss, 5),
        "validation_loss": round(validated(model, validation), 5),
        "seconds": round(time.perf_counter() - start, 1),
        "torch": torch.__version__,
    }


def grid() -> Iterator[dict[str, Any]]:
    """Yield every run, the decisive ones first."""

    def runs(
        family: str,
        ways: Iterable[str],
        seeds: Iterable[int] = SEEDS,
        rescale: bool = True,
        at: Iterable[float] = (0.9, 0.75),
        steps: int = STEPS,
    ) -> Iterator[dict[str, Any]]:
        for seed, way, sparsity in itertools.product(seeds, ways, at):
            yield {"family": family, "seed": seed, "way": way, "sparsity": sparsity, "rescale": rescale, "steps": steps}

    best = ["erk", "erk-logits"]
    yield from runs("llama", best, seeds=[0, 1])
    yield from runs("llama", best, seeds=[0], at=[0.9], steps=1000)
    yield from runs("llama", ["thin", "shallow"], seeds=[0], rescale=False)
    yield from runs("gpt2", best, seeds=[0])
    yield from runs("llama", ["dense"], seeds=[0], rescale=False, at=[0.0])
    yield from runs("llama", best, seeds=[0], rescale=False)
    for family in ("llama", "gpt2"):
        yield from runs(family, best)
    for family in ("llama", "gpt2"):
        yield from runs(family, ["uniform"])
    yield from runs("llama", MAIN, at=[0.9, 0.75], steps=1000)
    yield from runs("llama", ["dense"], rescale=False, at=[0.0], steps=1000)
    for family in ("llama", "gpt2"):
        yield from runs(family, ["dense"], rescale=False, at=[0.0])
        yield from runs(family, ["thin", "shallow"], rescale=False)
        yield from runs(family, MAIN, rescale=False)
        yield from runs(family, OTHERS, seeds=[0])
    for family in ("llama", "gpt2"):
        yield from runs(family, {**OTHERS, **CANDIDATES})
        yield from runs(family, OTHERS, rescale=False)
        yield from runs(family, ["thin", "shallow"], rescale=False, at=[0.5])
        yield from runs(family, MAIN, at=[0.5])
    for rescale in (True, False):
        for family in ("llama", "gpt2"):
            yield from runs(family, {**MAIN, **OTHERS}, rescale=rescale, at=[0.5])


def name_of(run: Run) -> str:
    """Return the name of a run."""
    scale = "-rescaled" if run["rescale"] else ""
    longer = "" if run["steps"] == STEPS else f"-{run['steps']}steps"
    return f"{run['family']}-{run['way']}{scale}-{100 * run['sparsity']:g}-seed{run['seed']}{longer}"


def table(found: Iterable[Run]) -> str:
    """Return a table in Markdown: mean validation loss ± spread over seeds, without and with rescaling."""
    losses: dict[tuple[Any, ...], list[float]] = {}
    empty: dict[tuple[Any, ...], int] = {}
    for run in found:
        key = run["family"], run["sparsity"], run["steps"], run["way"], run["rescale"]
        losses.setdefault(key, []).append(run["validation_loss"])
        empty[key] = max(empty.get(key, 0), run.get("empty", 0))

    def cell(key: tuple[Any, ...]) -> str:
        if key not in losses:
            return ""
        spread = f" ± {statistics.stdev(losses[key]):.3f}" if len(losses[key]) > 1 else ""
        few = f" ({len(losses[key])} seed)" if len(losses[key]) < len(SEEDS) else ""
        return f"{statistics.mean(losses[key]):.3f}{spread}{few}" + (f", {empty[key]} empty" if empty[key] else "")

    lines = []
    for case in sorted({key[:3] for key in losses}):
        lines += ["| {}, {:.0%}, {} steps | as drawn | rescaled |".format(*case), "|---|---|---|"]
        ways = [way for way in (*DENSE, *WAYS) if any((*case, way, rescale) in losses for rescale in (False, True))]
        rows = ((way, cell((*case, way, False)), cell((*case, way, True))) for way in ways)
        lines += [*(f"| {' | '.join(row)} |" for row in rows), ""]
    return "\n".join(lines)


def main() -> None:
    """Carry out what is missing."""
    study = Grid(grid(), name_of, table, Path(__file__).with_name("results.jsonl"))
    data = text()
    cut = int(0.9 * len(data))
    study.main(
        study.parser(__doc__).parse_args(),
        lambda run: carry_out(run, data[:cut], data[cut:]),
        "{validation_loss:.4f} nats",
    )


if __name__ == "__main__":
    main()

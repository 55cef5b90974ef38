"""``ntksap prune``."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tyro.conf import OmitArgPrefixes

from ntksap._base import join_job, new_folder, peak_memory_mib, require_new, write_json
from ntksap.analysis import diagnose
from ntksap.cli.console import print_json, say
from ntksap.cli.diagnose import print_sentences
from ntksap.cli.options import KeepArguments, ModelArguments
from ntksap.cli.overrides import MethodOptions, pick_given
from ntksap.cli.progress import Display
from ntksap.cli.tables import print_layers
from ntksap.data import load
from ntksap.methods import default_method
from ntksap.pruning import warn_of_collapse
from ntksap.report import densities_figure, write_figure
from ntksap.runs import Place, make_masks, pruning_for

# What the command knows about its masks anyway; the rest is what the method reports.
_SAID = {"method", "model", "classes", "sparsity", "seed", "precision", "round", "rounds", "input_shape", "seconds"}


@dataclass(frozen=True)
class PruneArguments:
    """How to prune; by default as the method does."""

    method: str | None = None
    """A name from `ntksap methods`; by default random-erk-logits with attention, else ntk-sap-analytic or ntk-sap."""
    sparsity: float = 0.9
    """Share of prunable weights to remove, 0 ≤ sparsity < 1."""
    rounds: int | None = None
    """How often to score and remove (T)."""
    schedule: Literal["exponential", "linear", "one-shot"] | None = None
    """How density falls over the rounds."""
    scope: Literal["global", "layer"] | None = None
    """Rank all weights together, or those (or channels) of each layer; mostly global, layer for whole channels."""
    floor: int | float = 0
    """The least that each layer keeps, as a number of weights or, below 1, as a share."""
    init: Literal["kaiming_normal", "reset", "shuffle"] = "kaiming_normal"
    """Where weight draws come from."""
    precision: Literal["auto", "float32", "bfloat16", "float64"] = "auto"
    """Precision of the scores. auto: the model's own, float32 for one in float16; float64 where float32 overflows."""
    device: str = "cpu"
    """cpu, cuda or mps."""
    micro_batch: int | None = None
    """Inputs to process at a time, with the same result; by default a whole batch, and less if memory runs out."""
    data: str | None = None
    """A data set, for the methods that need one: digits, cifar10, cifar100, tiny-imagenet or imagenet."""
    data_dir: Path | None = None
    """Where data sets are; by default the environment variable NTKSAP_DATA, else ./data."""
    strict: bool = False
    """Fail, rather than warn, when a layer is left with nothing."""


def run_prune(
    model: OmitArgPrefixes[ModelArguments],
    pruning: OmitArgPrefixes[PruneArguments],
    method: OmitArgPrefixes[MethodOptions],  # type: ignore[valid-type]
    mask: OmitArgPrefixes[KeepArguments],
    out: Path | None = None,
    json: bool = False,
    quiet: bool = False,
) -> None:
    """Choose which weights to keep, before training.

    Args:
        model: Which model.
        pruning: How to prune; by default as the method does.
        method: Options of single methods.
        mask: How many weights each layer keeps, which of them, and in which pattern.
        out: A new folder for masks.safetensors, prune.json and densities.png.
        json: Print one JSON object.
        quiet: Print no progress.
    """
    how = pruning
    if out is not None:
        require_new(out)
    data = load(how.data, how.data_dir) if how.data else None
    built = model.build(data)
    chosen = how.method
    if chosen is None:
        chosen = default_method(
            built.module,
            input_shape=built.shape,
            inputs=built.inputs,
            init=how.init,
            scope=how.scope,
            pattern=mask.pattern,
            options=[*pick_given(method), *(["micro_batch"] if how.micro_batch is not None else [])],
        )
    settings = pruning_for(
        method=chosen,
        sparsity=how.sparsity,
        seed=model.seed,
        rounds=how.rounds,
        schedule=how.schedule,
        scope=how.scope,
        floor=how.floor,
        init=how.init,
        precision=how.precision,
        options=pick_given(method),
        **mask.settings(),
    )
    about = {"model": model.model, "classes": model.classes or (data.num_classes if data else None)}
    start = time.perf_counter()
    with join_job(how.device) as (ranks, device), Display(quiet or not ranks.first) as display:
        place = Place(device=device, micro_batch=how.micro_batch)
        masks = make_masks(
            settings,
            built.module,
            built.shape,
            data,
            inputs=built.inputs,
            about=about,
            place=place,
            on_progress=display.on_progress,
            ranks=ranks,
        )
    seconds = time.perf_counter() - start
    if not ranks.first:
        return
    warn_of_collapse(masks, strict=how.strict)
    found = diagnose(built.module, masks, **built.probe)
    result: dict[str, Any] = {
        "method": chosen,
        "model": model.model,
        "data": how.data,
        "seed": model.seed,
        "sparsity": how.sparsity,
        "kept": masks.kept,
        "total": masks.total,
        "density": masks.density,
        "inference_flops": found.inference_flops,
        "dense_flops": found.dense_flops,
        "effective_sparsity": found.effective_sparsity,
        "rounds": settings.rounds,
        "options": settings.options,
        "precision": masks.info["precision"],
        "prune_seconds": seconds,
        "processes": ranks.size,
        "peak_memory_mib": peak_memory_mib(),
        "collapsed": masks.collapsed,
        "info": masks.info,
        "mask_sha256": masks.sha256,
        "layers": masks.layers(),
    }
    if out is not None:
        with new_folder(out) as folder:
            masks.save(folder / "masks.safetensors")
            write_json(folder / "prune.json", result)
            title = f"{model.model} pruned to {how.sparsity:.2%} by {chosen}"
            write_figure(densities_figure({chosen: masks}, title), folder / "densities.png")
    if json:
        print_json(result)
        return
    print_layers(masks.layers())
    say(f"\n{chosen} kept {masks.kept:,} of {masks.total:,} weights in {seconds:.1f} s.")
    print_sentences(found)
    for key, value in masks.info.items():
        if key not in _SAID:
            shown = f"{value:.4g}" if isinstance(value, float) else value
            say(f"{key.replace('_', ' ')}: {shown}")
    if masks.weights:
        say("The masks come with weights to start training from: see Masks.load_weights.")
    if out is not None:
        say(f"Wrote masks.safetensors, prune.json and densities.png in {out}")

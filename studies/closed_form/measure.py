"""Measure what the page beside this folder shows: masks of `ntk-sap-analytic`, and on ResNet-20 of `ntk-sap`.

    python -m studies.closed_form.measure            # resumes where it stopped; writes measured.json
    python -m studies.closed_form.figures            # draws the figures from it

It takes minutes on 2 CPU cores; --sampled adds two masks of `ntk-sap` to compare with, which takes some minutes more.
"""

import json
import sys
import time
import warnings
from pathlib import Path

import ntksap

STORE = Path(__file__).with_name("measured.json")
SPARSITIES = {f"{100 * (1 - 0.8**k):.2f}": 1 - 0.8**k for k in (2, 6, 10, 14, 18)}
SETTINGS = {  # model, classes, input shape, as in the paper's tables
    "resnet20": ("resnet20", 10, (3, 32, 32)),
    "vgg16": ("vgg16-bn", 100, (3, 32, 32)),
    "resnet18": ("resnet18", 200, (3, 64, 64)),
}


def measure(setting: str, sparsity: str, method: str, seed: int, **options: object) -> dict[str, object]:
    """Prune once: multiply-adds of one inference, density of each layer, layers and channels that are left."""
    name, classes, shape = SETTINGS[setting]
    model = ntksap.models.build(name, num_classes=classes, seed=seed)
    start, cpu = time.perf_counter(), time.process_time()
    masks = ntksap.prune(model, SPARSITIES[sparsity], method, scope="global", input_shape=shape, seed=seed, **options)
    return {
        "seconds": round(time.perf_counter() - start, 2),
        "cpu_seconds": round(time.process_time() - cpu, 2),
        "multiply_adds": ntksap.cost(model, masks, input_shape=shape).sparse,
        "densities": {name: float(mask.float().mean()) for name, mask in masks.items()},
        "outputs_alive": sum(int(mask.flatten(1).any(1).sum()) for mask in masks.values()),
        "outputs": sum(len(mask) for mask in masks.values()),
        "collapsed": len(masks.collapsed),
    }


def plan(sampled: bool) -> list[tuple[str, str, str, int, dict[str, object]]]:
    """Every measurement as (setting, sparsity, method, seed, options), the cheap ones first."""
    analytic = "ntk-sap-analytic"
    jobs: list[tuple[str, str, str, int, dict[str, object]]] = []
    for setting in SETTINGS:
        jobs += [(setting, sparsity, analytic, 0, {}) for sparsity in reversed(SPARSITIES)]
    jobs += [("resnet20", "98.20", analytic, 0, {"rounds": rounds}) for rounds in (1, 4, 100)]
    jobs += [("resnet20", "98.20", analytic, 0, {"rounds": rounds, "noise": False}) for rounds in (1, 4, 20, 100)]
    for seed in (1, 2):
        jobs += [("resnet20", sparsity, analytic, seed, {}) for sparsity in SPARSITIES]
    for rounds in (1, 4, 100):
        jobs += [("resnet20", s, analytic, 0, {"rounds": rounds}) for s in ("36.00", "73.79", "89.26", "95.60")]
    if sampled:
        jobs += [("resnet20", sparsity, "ntk-sap", 0, {}) for sparsity in ("98.20", "89.26")]
    return jobs


def main() -> None:
    """Measure what is not in the file yet."""
    warnings.simplefilter("ignore", ntksap.CollapseWarning)
    for setting, sparsity, method, seed, options in plan("--sampled" in sys.argv):
        key = " ".join([setting, sparsity, method, f"seed={seed}", *(f"{k}={v}" for k, v in options.items())])
        done = json.loads(STORE.read_text()) if STORE.exists() else {}
        if key not in done:
            done[key] = measure(setting, sparsity, method, seed, **options)
            STORE.write_text(json.dumps(done, indent=1) + "\n")
            print(key, f"{done[key]['multiply_adds']:.4g}", f"{done[key]['cpu_seconds']} s of CPU", flush=True)


if __name__ == "__main__":
    main()

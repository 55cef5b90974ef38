"""Finished runs made by hand, to say what a report shall say of them."""

from ntksap.report.reading import Run

RECIPE = {"epochs": 2, "lr": 0.1}


def timed(seconds):
    """Timings of a network that takes so long, beside a dense one that takes a second."""
    names = ("inference_1", "inference_64", "step_64")
    shown = {f"{kind}{name}": value for kind, value in (("", seconds), ("dense_", 1.0), ("speedup_", 1 / seconds))
             for name in names}  # fmt: skip
    return {"bytes": 1000 * seconds, "dense_bytes": 1000, "threads": 1, **shown}


def finished(
    method,
    sparsity,
    seed,
    top1,
    *,
    layers=None,
    recipe=None,
    flops=10.0,
    kept=None,
    images=None,
    timings=None,
    **changes,
):
    settings = {
        "model": "net",
        "data": "digits",
        "method": method,
        "sparsity": sparsity,
        "seed": seed,
        "sanity": "none",
    }
    settings |= {"recipe": recipe or RECIPE, "rounds": 5, **changes}
    numbers = {"train_accuracy": 0.5, "inference_flops": flops, "dense_flops": 100.0, "prune_seconds": 1.0}
    result = {"top1": top1, **numbers, "train_seconds": 2.0, "collapsed": [], "test_images": images}
    result |= {"timings": timings} if timings else {}
    result |= {"kept": kept, "total": None if kept is None else 100}
    name = f"{method}-{sparsity}-{seed}-{changes}-{recipe}"
    return Run(name, "finished", settings, layers=layers or {"fc.weight": 0.5}, result=result)


def seeds(method, sparsity, *accuracies, **more):
    return [finished(method, sparsity, seed, top1, **more) for seed, top1 in enumerate(accuracies)]

"""The pruning jobs: masks from both sides, compared weight by weight and layer by layer."""

from collections.abc import Mapping

import torch
from torch import Tensor

import ntksap
from benchmarks import textbook
from benchmarks.harness import Job
from ntksap import Net, Probe, models
from ntksap.methods.ntk_sap import ntk_sap

CIFAR = (3, 32, 32)
DENSITY = 1 - 0.982


def agreement(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> dict[str, float]:
    """Shared kept weights over all kept ones, and the largest relative difference of a layer's density.

    Only layers with more than 1000 kept weights count for the latter, as smaller ones differ by chance.
    """
    shared = sum(int((first[name] & second[name]).sum()) for name in first)
    either = sum(int((first[name] | second[name]).sum()) for name in first)
    gaps = [abs(float(second[n].sum() / first[n].sum()) - 1) for n in first if int(first[n].sum()) > 1000]
    return {"shared": shared / either, "layer_density_gap": max(gaps, default=0.0)}


def images(classes: int = 10) -> list[tuple[Tensor, Tensor]]:
    """100 pictures of 32×32 with labels; the time does not depend on what they show."""
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(100, *CIFAR, generator=generator), torch.arange(100) % classes)]


def ntk_sap_resnet20() -> Job:
    model = models.build("resnet20", seed=0)
    return Job(
        "ntk-sap-resnet20",
        "NTK-SAP, ResNet-20, T=20, R=5, 100 inputs, to 98.20 %",
        "≥ 3× with bf16, ≥ 1.7× in fp32",
        lambda: textbook.prune(model, DENSITY, 20, textbook.ntk_sap, CIFAR, 5, 100, 0),
        lambda: ntksap.prune(model, 1 - DENSITY, "ntk-sap", input_shape=CIFAR),
        agreement,
        repeats=2,
    )


def ntk_sap_vgg16() -> Job:
    model = models.build("vgg16-bn", seed=0)
    return Job(
        "ntk-sap-vgg16",
        "NTK-SAP, VGG-16-BN, 5 rounds of 4×256 inputs",
        "≥ 3× with bf16, ≥ 1.7× in fp32",
        lambda: textbook.prune(model, 0.1, 5, textbook.ntk_sap, CIFAR, 4, 256, 0),
        lambda: ntksap.prune(model, 0.9, "ntk-sap", input_shape=CIFAR, rounds=5, draws=4, batch=256),
        agreement,
        repeats=2,
        memory=False,  # minutes more
    )


def synflow_resnet20() -> Job:
    model = models.build("resnet20", seed=0)
    return Job(
        "synflow-resnet20",
        "SynFlow, ResNet-20, T=100",
        "≥ 3×",
        lambda: textbook.prune(model, DENSITY, 100, textbook.synflow, CIFAR),
        lambda: ntksap.prune(model, 1 - DENSITY, "synflow", input_shape=CIFAR),
        agreement,
        repeats=5,
    )


def iterative_snip_resnet20() -> Job:
    model, batches = models.build("resnet20", seed=0), images()
    return Job(
        "iterative-snip-resnet20",
        "Iterative SNIP, ResNet-20, T=100, 100 samples",
        "≥ 2.5×",
        lambda: textbook.prune(model, DENSITY, 100, textbook.snip, batches),
        lambda: ntksap.prune(model, 1 - DENSITY, "iterative-snip", data=batches),
        agreement,
    )


def grasp_resnet20() -> Job:
    model, batches = models.build("resnet20", seed=0), images()
    return Job(
        "grasp-resnet20",
        "GraSP, ResNet-20",
        "≥ 2×",
        lambda: textbook.prune(model, DENSITY, 1, textbook.grasp, batches),
        lambda: ntksap.prune(model, 1 - DENSITY, "grasp", data=batches),
        agreement,
        repeats=10,
    )


def resnet50_memory() -> Job:
    """The textbook version cannot run: its graph of 128 inputs takes about 40 GB."""
    shape = (3, 224, 224)
    model = models.build("resnet50", num_classes=1000, input_shape=shape, seed=0)

    def scores(batch: int, micro_batch: int, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
        net = Net(model, dtype=dtype)
        probe = Probe.of(net, input_shape=shape, micro_batch=micro_batch)
        masks = ntksap.Masks.ones({name: net.weights[name] for name in net.prunable})
        return ntk_sap(net, masks, probe, draws=1, batch=batch)

    def whole_against_slices(_textbook: None, _product: object) -> dict[str, float]:
        # In float64: even for whole batches, float32 scores are about 1 % off the float64 ones, as differences cancel.
        whole, cut = (scores(2, micro_batch, torch.float64) for micro_batch in (2, 1))
        gaps = [float((cut[name] - whole[name]).norm() / whole[name].norm()) for name in whole]
        return {"largest_gap_between_2_inputs_whole_and_one_by_one": max(gaps)}

    return Job(
        "resnet50-memory",
        "ResNet-50, 224×224, batch 128 in slices of 8, one NTK-SAP draw",
        "fits in 6 GiB (6144 MiB), equal to the whole batch",
        None,
        lambda: scores(128, 8),
        whole_against_slices,
        repeats=1,
    )

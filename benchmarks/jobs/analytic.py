"""NTK-SAP in closed form against NTK-SAP as the product samples it: other masks, so only layer densities can agree."""

import ntksap
from benchmarks.harness import Job
from benchmarks.jobs.pruning import CIFAR, DENSITY, agreement
from ntksap import models


def ntk_sap_analytic_resnet20() -> Job:
    model = models.build("resnet20", seed=0)
    return Job(
        "ntk-sap-analytic-resnet20",
        "NTK-SAP in closed form against sampled, ResNet-20, T=20, to 98.20 %",
        "≥ 30×",
        lambda: ntksap.prune(model, 1 - DENSITY, "ntk-sap", input_shape=CIFAR),
        lambda: ntksap.prune(model, 1 - DENSITY, "ntk-sap-analytic", input_shape=CIFAR),
        agreement,
        repeats=2,
    )


def ntk_sap_analytic_vgg16() -> Job:
    model = models.build("vgg16-bn", seed=0)
    return Job(
        "ntk-sap-analytic-vgg16",
        "NTK-SAP in closed form against sampled (4×256 inputs), VGG-16-BN, 5 rounds",
        "≥ 100×",
        lambda: ntksap.prune(model, 0.9, "ntk-sap", input_shape=CIFAR, rounds=5, draws=4, batch=256),
        lambda: ntksap.prune(model, 0.9, "ntk-sap-analytic", input_shape=CIFAR, rounds=5),
        agreement,
        repeats=2,
        memory=False,  # minutes more
    )

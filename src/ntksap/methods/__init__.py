"""The methods: one file each, one line each in this table."""

from ntksap.methods.grasp import grasp
from ntksap.methods.magnitude import magnitude
from ntksap.methods.ntk_sap import ntk_sap
from ntksap.methods.random import random
from ntksap.methods.registry import METHODS, Method, Option, method_named, register
from ntksap.methods.snip import snip
from ntksap.methods.synflow import synflow

__all__ = ["METHODS", "Method", "Option", "method_named", "register"]

# fmt: off
register(Method("random", random, "keep weights at random", data_free=True, weight_agnostic=True))
register(Method("magnitude", magnitude, "keep the largest initial weights", data_free=True))
register(Method("snip", snip, "keep what changes the loss most"))
register(Method("iterative-snip", snip, "SNIP, scored again after each round", rounds=100))
register(Method("force", snip, "Iterative SNIP whose pruned weights may return", rounds=100, regrow=True))
register(Method("grasp", grasp, "keep what preserves the gradient flow"))
register(Method("synflow", synflow, "keep the strongest paths of absolute weights", rounds=100, data_free=True))
register(Method("ntk-sap", ntk_sap, "keep what matters to the spectrum of the neural tangent kernel", rounds=20,
                data_free=True, weight_agnostic=True, splits=True))
register(Method("ntk-sap-s", ntk_sap, "NTK-SAP in a fifth of the rounds", rounds=4,
                data_free=True, weight_agnostic=True, splits=True))
# fmt: on

"""The methods: one file each, one line each in this table."""

from ntksap.methods.default import default_method
from ntksap.methods.dpai import dpai
from ntksap.methods.grasp import grasp
from ntksap.methods.homogeneity import warn_of_bends
from ntksap.methods.hutchinson import hutchinson
from ntksap.methods.imp import check_rewinds, imp
from ntksap.methods.layer_densities import layer_densities
from ntksap.methods.mag_1epoch import mag_1epoch
from ntksap.methods.magnitude import magnitude
from ntksap.methods.missing_derivatives import explain_failures
from ntksap.methods.ntk_sap import ntk_sap
from ntksap.methods.ntk_sap_analytic import ntk_sap_analytic
from ntksap.methods.ntt import ntt
from ntksap.methods.options import Option
from ntksap.methods.phew import phew
from ntksap.methods.prospr import prospr
from ntksap.methods.px import px
from ntksap.methods.random import random
from ntksap.methods.registry import METHODS, Method, Need, method_named, register
from ntksap.methods.snip import force, snip
from ntksap.methods.synflow import synflow

__all__ = [
    "METHODS",
    "Method",
    "Need",
    "Option",
    "default_method",
    "explain_failures",
    "layer_densities",
    "method_named",
    "register",
    "warn_of_bends",
]

# fmt: off
register(Method("random", random, "keep weights at random", data="none", weight_agnostic=True))
register(Method("magnitude", magnitude, "keep the largest initial weights", data="none"))
register(Method("mag-1epoch", mag_1epoch, "keep what is largest after one epoch of training", data="training set",
                from_recipe={"prune_lr": "lr", "prune_momentum": "momentum", "prune_weight_decay": "weight_decay"}))
register(Method("snip", snip, "keep what changes the loss most"))
register(Method("iterative-snip", snip, "SNIP, scored again after each round", rounds=100))
register(Method("force", force, "Iterative SNIP whose pruned weights may return", rounds=100, regrow=True))
register(Method("grasp", grasp, "keep what preserves the gradient flow"))
register(Method("prospr", prospr, "keep what changes the loss most a few training steps later", data="training set",
                batch=128))
register(Method("synflow", synflow, "keep the strongest paths of absolute weights", rounds=100, data="none",
                homogeneous=True))
register(Method("px", px, "keep the strongest paths that the data activates", rounds=100, labels=False,
                homogeneous=True))
register(Method("ntt", None, "train mask and weights to the dense net's outputs and neural tangent kernel", pruner=ntt,
                rounds=20, schedule="one-shot", scope="layer", data="training set", labels=False, batch=64,
                regrow=True, returns_weights=True))
register(Method("ntk-sap", ntk_sap, "keep what matters to the spectrum of the neural tangent kernel", rounds=20,
                data="none", weight_agnostic=True, splits=True))
register(Method("ntk-sap-s", ntk_sap, "NTK-SAP in a fifth of the rounds", rounds=4,
                data="none", weight_agnostic=True, splits=True))
register(Method("ntk-sap-analytic", ntk_sap_analytic, "NTK-SAP without sampling: its expectation in closed form",
                rounds=20, data="none", weight_agnostic=True, allocation="ntk-sap", places="balanced"))
register(Method("random-erk", random, "keep weights at random, in each layer as many as ERK says", data="none",
                weight_agnostic=True, allocation="erk"))
register(Method("random-erk-logits", random, "random-erk with more for queries, keys and the classifier", data="none",
                weight_agnostic=True, allocation="erk-logits"))
register(Method("magnitude-erk", magnitude, "keep the largest initial weights, in each layer as many as ERK says",
                data="none", allocation="erk"))
register(Method("hutchinson", hutchinson, "keep what changes the loss most, to second order", data="training set",
                batch=128, draws=True))
register(Method("phew", None, "keep what random walks along large weights meet first", pruner=phew, data="none",
                draws=True))
register(Method("dpai", None, "train a mask to many paths, and to many units and kernels on them", pruner=dpai,
                rounds=20, schedule="one-shot", allocation="erk", data="none", weight_agnostic=True, regrow=True))
register(Method("imp", None, "train, remove the smallest weights, rewind the others, and again", pruner=imp, rounds=18,
                rate=0.2, data="training", returns_weights=True, from_recipe={"level_epochs": "epochs"},
                agree=check_rewinds))
# fmt: on

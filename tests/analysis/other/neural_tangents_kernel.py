"""Kernels by neural-tangents, a library on JAX: ``python neural_tangents_kernel.py PROBLEM.npz ANSWER.npz``.

A problem holds ``net`` (a function below), ``inputs``, the ``constants`` (biases, BatchNorm) and the prunable
``weights`` under their torch names, a ``mask/NAME`` for each weight. The answer holds the kernel (n·k × n·k) by two of
the library's three implementations; the third, of structured derivatives, fails on this JAX.
"""

import sys
import types

import jax
import jax.numpy as jnp
import numpy as np

# This part of the library, which is not used here, imports TensorFlow.
sys.modules["neural_tangents.experimental"] = types.ModuleType("neural_tangents.experimental")
import neural_tangents  # noqa: E402

jax.config.update("jax_enable_x64", True)


def linear(p, name, x):
    return x @ p[f"{name}.weight"].T + p.get(f"{name}.bias", 0.0)


def convolution(p, name, x, stride=1, padding=0):
    y = jax.lax.conv_general_dilated(x, p[f"{name}.weight"], (stride, stride), [(padding, padding)] * 2)
    return y + p.get(f"{name}.bias", jnp.zeros(1))[:, None, None]


def batchnorm(p, name, x):
    mean, variance, scale, shift = (
        p[f"{name}.{part}"][:, None, None] for part in ("running_mean", "running_var", "weight", "bias")
    )
    return (x - mean) / jnp.sqrt(variance + 1e-5) * scale + shift


def mlp(p, x):
    return linear(p, "4", jnp.tanh(linear(p, "2", jax.nn.relu(linear(p, "0", x)))))


def strided(p, x):
    x = jax.nn.relu(convolution(p, "0", x, stride=2, padding=1))
    x = jax.nn.relu(convolution(p, "2", x, padding=2))
    return linear(p, "5", x.reshape(len(x), -1))


def residual(p, x):
    y = convolution(p, "stem", x, padding=1)
    inside = jax.nn.relu(batchnorm(p, "branch.1", convolution(p, "branch.0", y, padding=1)))
    return linear(p, "head", jax.nn.relu(y + convolution(p, "branch.3", inside)).mean((2, 3)))


def main(problem_path, answer_path):
    problem = dict(np.load(problem_path))
    net = {"mlp": mlp, "strided": strided, "residual": residual}[str(problem.pop("net"))]
    inputs = jnp.asarray(problem.pop("inputs"))
    masks = {name.removeprefix("mask/"): problem.pop(name) for name in list(problem) if name.startswith("mask/")}
    weights = {name: jnp.asarray(problem.pop(name)) for name in masks}

    def masked(p, x):
        return net({**problem, **{name: p[name] * masks[name] for name in masks}}, x)

    answer = {}
    for name in ("JACOBIAN_CONTRACTION", "NTK_VECTOR_PRODUCTS"):
        implementation = neural_tangents.NtkImplementation[name]
        kernel = neural_tangents.empirical_ntk_fn(masked, trace_axes=(), vmap_axes=0, implementation=implementation)
        blocks = np.asarray(jax.jit(kernel)(inputs, None, weights))  # (n, n, k, k)
        rows = blocks.shape[0] * blocks.shape[2]
        answer[name] = blocks.transpose(0, 2, 1, 3).reshape(rows, rows)
    np.savez(answer_path, **answer)


if __name__ == "__main__":
    main(*sys.argv[1:])

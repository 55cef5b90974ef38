"""Kernels in C for the CPU: convolutions and linear layers of kept weights, dense 3×3 convolutions, and BatchNorm.

The machine's own C compiler makes them on first use and keeps them in a folder of the user's own (see `cache`). They
share torch's threads. Without a compiler, on other devices, or with the environment variable ``NTKSAP_NATIVE=0``,
torch's own kernels do the work.
"""

from ntksap.net.kernels.choice import Choices
from ntksap.net.kernels.compiler import available, library, provenance, transformed
from ntksap.net.kernels.context import ruled_kernels, sparse_kernels
from ntksap.net.kernels.geometry import Geometry, without_skips
from ntksap.net.kernels.layers import bears_channels_last, native_layers, safe_layers, sparse_layers
from ntksap.net.kernels.sparse_conv import by_kept_weights, conv2d

__all__ = [
    "Choices",
    "Geometry",
    "available",
    "bears_channels_last",
    "by_kept_weights",
    "conv2d",
    "library",
    "native_layers",
    "provenance",
    "ruled_kernels",
    "safe_layers",
    "sparse_kernels",
    "sparse_layers",
    "transformed",
    "without_skips",
]

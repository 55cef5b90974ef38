"""A Ray cluster to work on: an existing one, or this machine alone."""

import importlib
import logging
import os
import secrets
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ntksap._base import InputError, cores

_OBJECT_STORE = 80 * 2**20  # results are small


@contextmanager
def cluster(address: str | None, cpus: int, gpus: float) -> Iterator[Any]:
    """Connect to a cluster, or start one on this machine, and leave or stop it at the end."""
    if address is not None:
        _check_address(address)
    elif "ray" not in sys.modules:  # Ray listens on all interfaces, so let nobody else in; read when it is imported
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # the future default; without it Ray warns
    try:
        ray: Any = importlib.import_module("ray")
        importlib.import_module("ray.util.scheduling_strategies")
    except ImportError as error:
        raise InputError(f"--engine ray needs Ray: pip install 'ntksap[ray]' ({error})") from error
    start = {} if address else {"num_cpus": cores(), "include_dashboard": False, "object_store_memory": _OBJECT_STORE}
    try:
        ray.init(address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **start)
    except Exception as error:
        raise InputError(f"cannot {f'join the Ray cluster {address}' if address else 'start Ray'}: {error}") from error
    try:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if not any(node.get("CPU", 0) >= cpus and node.get("GPU", 0) >= gpus for node in nodes):
            raise InputError(f"no machine of the cluster has {cpus} CPUs and {gpus:g} GPUs for a run")
        yield ray
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """Raise at once where Ray would keep trying for a long time."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if "/" in address or not host or not port.isdigit():
        raise InputError(f"--address is host:port, or auto, on a machine of the cluster, not {address!r}")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, OverflowError) as error:
        raise InputError(
            f"no Ray cluster at {address} ({error}). `ray start --head` starts one and prints its address"
        ) from error

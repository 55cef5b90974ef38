"""Where the runs of a sweep are carried out: the same record for the command line and for Python."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ntksap._base import InputError, cores
from ntksap.runs.folder import Place
from ntksap.runs.local_sweep import sweep
from ntksap.runs.ray_sweep import sweep_ray
from ntksap.runs.settings import Settings
from ntksap.runs.store import Store
from ntksap.runs.work import Event


@dataclass(frozen=True)
class Engine:
    """Where the runs are carried out."""

    engine: Literal["local", "ray"] = "local"
    """local: in processes on this machine. ray: as tasks of a Ray cluster; they resume elsewhere if a machine dies."""
    jobs: int | None = None
    """local: runs at a time, by default one per core; each has its share of the cores, at most OMP_NUM_THREADS."""
    address: str | None = None
    """ray: host:port of a cluster that this machine belongs to, or auto; by default Ray is started here and stopped."""
    cpus: int | None = None
    """ray: CPUs, and hence threads, of one run; by default 1."""
    gpus: float | None = None
    """ray: GPUs of one run; by default 1 on a cuda device."""
    store: str | None = None
    """A URL such as s3://bucket/folder: finished runs are copied there, and those already there are not done again."""

    def sweep(self, plan: Sequence[Settings], root: Path, place: Place) -> Generator[Event, None, None]:
        """Check the arguments and return what will happen to the runs."""
        others = {"local": ("address", "cpus", "gpus"), "ray": ("jobs",)}[self.engine]
        for name in others:
            if getattr(self, name) is not None:
                raise InputError(f"--{name} means nothing to --engine {self.engine}")
        if self.jobs is not None and self.jobs < 1:
            raise InputError(f"--jobs must be at least 1, not {self.jobs}")
        store = None
        if self.store is not None:
            store = Store(self.store)
            store.check()
        if self.engine == "local":
            return sweep(plan, root, place, self.jobs or cores(), store)
        return sweep_ray(
            plan,
            root,
            place,
            address=self.address,
            cpus=1 if self.cpus is None else self.cpus,
            gpus=self.gpus,
            store=store,
        )

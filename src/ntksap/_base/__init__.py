"""What everything rests on and what knows nothing of networks: errors, seeds, files, machine, ranks, tensors, sums."""

from ntksap._base.errors import (
    ApproximationWarning,
    CollapseError,
    CollapseWarning,
    DamageError,
    InputError,
    MaskError,
    MemoryWarning,
    NotPrunableWarning,
    NtksapError,
    ScoreError,
    StorageError,
    unknown,
)
from ntksap._base.files import TEMPORARY, make_folder, new_file, new_folder, require_new, write_atomically, write_json
from ntksap._base.fill import check_keys, check_value, fill
from ntksap._base.machine import (
    available_memory_mib,
    check_bfloat16,
    cores,
    keep_memory,
    peak_memory_mib,
    usable_device,
)
from ntksap._base.ranges import Range
from ntksap._base.ranks import ALONE, Ranks, explain_lost_ranks, join_job
from ntksap._base.seals import read_sealed, sealed, unsealed, write_sealed
from ntksap._base.seeds import generator_of, global_seed, seed_of
from ntksap._base.sharing import share_cores
from ntksap._base.tensors import has_own_rules, sha256_of, sha256_of_one
from ntksap._base.threads import threads_for
from ntksap._base.words import counted

__all__ = [
    "ALONE",
    "TEMPORARY",
    "ApproximationWarning",
    "CollapseError",
    "CollapseWarning",
    "DamageError",
    "InputError",
    "MaskError",
    "MemoryWarning",
    "NotPrunableWarning",
    "NtksapError",
    "Range",
    "Ranks",
    "ScoreError",
    "StorageError",
    "available_memory_mib",
    "check_bfloat16",
    "check_keys",
    "check_value",
    "cores",
    "counted",
    "explain_lost_ranks",
    "fill",
    "generator_of",
    "global_seed",
    "has_own_rules",
    "join_job",
    "keep_memory",
    "make_folder",
    "new_file",
    "new_folder",
    "peak_memory_mib",
    "read_sealed",
    "require_new",
    "sealed",
    "seed_of",
    "sha256_of",
    "sha256_of_one",
    "share_cores",
    "threads_for",
    "toml",  # a module that is imported where it is needed, see its docstring
    "unknown",
    "unsealed",
    "usable_device",
    "write_atomically",
    "write_json",
    "write_sealed",
]

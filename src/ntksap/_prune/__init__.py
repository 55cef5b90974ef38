"""The calls of the core, `prune`, `allocate` and `write_masks`: from a module to masks."""

from ntksap._prune.allocating import allocate
from ntksap._prune.combinations import check_combination, own_rules
from ntksap._prune.pruning import prune
from ntksap._prune.rules import ALLOCATIONS, Rule
from ntksap._prune.writing import write_masks

__all__ = ["ALLOCATIONS", "Rule", "allocate", "check_combination", "own_rules", "prune", "write_masks"]

"""Masks in other libraries' training loops, each imported by its own name, since each needs the package it is for.

- ``ntksap.integrations.huggingface.PruningCallback``: for the Trainer of transformers
- ``ntksap.integrations.lightning.PruningCallback``: for Lightning's Trainer, and for Fabric
- ``ntksap.integrations.accelerate.register_pruning``: for loops with an Accelerator
"""

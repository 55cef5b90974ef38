collect_ignore = ["neural_tangents_kernel.py"]  # runs in an environment of its own, which has jax

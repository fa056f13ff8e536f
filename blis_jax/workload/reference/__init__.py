"""The reference's own requests: for a specification and a seed, equal to those that BLIS draws."""

from blis_jax.workload.reference.generate import draw, golden_arrays

__all__ = ["draw", "golden_arrays"]

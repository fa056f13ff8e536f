"""Latency models: how long a step takes.

A model is one file here and one line in `registry.py`, or a user's `path/to/file.py:Name`. It reads a batch as totals
and, if it asks for them, its members one by one; the engine depends on no model's coefficients.
"""

from blis_jax.latency.contract import LatencyModel, latency_model

__all__ = ["LatencyModel", "latency_model"]

"""Latency models: how long a step takes.

A model is one file here and one line in `registry.py`, or `path/to/file.py:Name` of a user. It sees the batch as
totals and, where it asks for them, its members one by one; the engine knows no coefficient of it.
"""

from blis_jax.latency.contract import LatencyModel, latency_model

__all__ = ["LatencyModel", "latency_model"]

"""Measurements behind every speed claim: `python -m benchmarks`."""

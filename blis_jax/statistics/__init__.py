"""Inference over common seeds: `intervals` of figures, `paired` differences and their verdicts, `compared` sweeps.

The one place for inference; quantiles are scipy's. Imports names of metrics, nothing else of the simulator.
"""

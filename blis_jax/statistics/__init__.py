"""Inference over common seeds: `intervals` of figures, `paired` differences and their verdicts, `compared` sweeps.

All inference is here; quantiles are scipy's. Of the simulator, only names of metrics are imported.
"""

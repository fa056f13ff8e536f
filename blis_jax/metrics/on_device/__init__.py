"""Metrics inside the compiled call: a run's figures as JAX functions of the engine's tables, lane by lane.

`figures` has one function for each name of `scalar_metrics`, `summarizers` say what comes back of a run and `compiled`
joins them to the engine. Equal to the host's; it may import the engine and the records, and nothing of a command.
"""

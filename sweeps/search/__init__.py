"""`python -m sweeps.optimize`: the search of a strategy's parameters; `evaluate/` answers other optimisers."""

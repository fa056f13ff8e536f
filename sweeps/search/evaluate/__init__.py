"""`python -m sweeps.evaluate`: a strategy and its parameters to metrics, as JSON."""

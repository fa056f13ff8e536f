"""`blis-jax sensitivity` and `sweeps.gradient`: which parameters matter, for which metric and class."""

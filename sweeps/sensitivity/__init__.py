"""`blis-jax sensitivity` and `blis-jax gradient`: which parameters matter, for which metric and class."""

"""`blis-jax ablate`: what each component of a strategy contributes, and how components interact."""

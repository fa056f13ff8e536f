"""`blis-jax sweep`: strategies on many common seeds, compared per SLO class."""

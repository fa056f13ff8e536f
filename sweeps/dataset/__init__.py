"""`blis-jax dataset`: runs all over a space, from which a surrogate learns."""

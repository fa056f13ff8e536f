"""`blis-jax select`: the best of several arms, with a stated probability of being right."""

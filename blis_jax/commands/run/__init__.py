"""`blis-jax run`: one run, or recorded scenarios again; figures as BLIS prints them."""

"""`blis-jax capacity`: the smallest cluster that meets its service targets, with stated confidence."""

"""`blis-jax compare`: strategies on common seeds, by paired differences per class.

`ablation/` says which component of a strategy does it.
"""

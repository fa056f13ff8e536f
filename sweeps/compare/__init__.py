"""`blis-jax compare`: strategies on common seeds, by paired differences per class.

`ablation/` shows which component of a strategy causes a difference.
"""

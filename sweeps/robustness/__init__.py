"""`blis-jax robustness`: which strategy is best in which regime, and how surely."""

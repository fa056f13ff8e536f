"""Intervals of fitted coefficients, and what cannot be identified."""

"""Contexts for evolved routing functions, and Go itself to decide about them."""

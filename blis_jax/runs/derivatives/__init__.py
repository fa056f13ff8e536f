"""Derivatives of a run: pathwise ones of its times, and the slopes of metrics that follow from them."""

"""Scorers: rate every instance for one request, in [0, 1], higher is better; values outside are cut off."""

"""What engines with models have in common: coordinates of points, what is known of them, and the models."""

"""Learned stand-ins for the simulator: features, models, fitting, calibrated intervals."""

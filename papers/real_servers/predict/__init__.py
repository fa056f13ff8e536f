"""Predictions of measured runs of real servers: what a file of runs asks for, simulated, with intervals."""

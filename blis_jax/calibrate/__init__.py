"""Latency coefficients fitted to a measured run: requests in, coefficients with intervals out."""

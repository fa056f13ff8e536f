"""Runs that test principles: probes, a tuner, and the lab in which both are made."""

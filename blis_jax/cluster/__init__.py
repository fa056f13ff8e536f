"""Describe the simulated cluster: its configuration, checked once, and groups of instances that differ."""

"""Requests drawn on the device: a plan of the workload, its numbers, and the draws from a key."""

"""Requests drawn on the device: a plan of static sizes, the numbers of the workload, and the draws from a JAX key."""

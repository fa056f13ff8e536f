"""Latency against throughput: curves over the rate, the rate at which a cluster is full, and the Pareto front."""

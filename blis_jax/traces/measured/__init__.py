"""Runs of real servers as their clients and engines wrote them down: requests with the latencies that each had."""

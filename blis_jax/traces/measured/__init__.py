"""Measured runs of real servers, read from the files of clients and engines: requests with their latencies."""

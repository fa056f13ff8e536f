"""Latency models: how long a step takes.

A model is one file here and one line in `registry.py`. It sees the batch as totals and, where its line asks for
them, its members one by one; the engine knows no coefficient of it.
"""

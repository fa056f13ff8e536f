"""Policies that were invented in the tracks' experiments, each loaded by its path as a user's own file is.

A strategy names one as `sweeps/strategies/policies/FILE.py:NAME`; BLIS and llm-d have none of them.
"""

"""Evolved programs: routing functions in Go become policies, and are checked on seeds that their search did not use.

May import the layers below `sweeps` and its experiments and comparisons.
"""

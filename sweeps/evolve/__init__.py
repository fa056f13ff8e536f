"""Evolved programs: translate Go functions to policies, breed formulas, and check both on seeds that no search used.

May import the layers below `sweeps` and its experiments and comparisons.
"""

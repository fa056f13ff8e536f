"""Evolved programs: functions in Go become policies, formulas are bred, and both are checked on seeds of no search.

May import the layers below `sweeps` and its experiments and comparisons.
"""

"""Routing policies as data: tables of operations that one compiled engine runs, so that a new policy compiles
nothing.
"""

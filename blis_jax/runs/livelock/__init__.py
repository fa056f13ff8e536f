"""Runs that a horizon ends in a livelock: rounds of barren steps that repeat are skipped, exactly.

The host runs a row in stretches and compares states; it imports the loop and the runner's programs.
"""

"""The commands `run` and `sweep`, the door to all commands, and what they share: options, one-sentence errors, flags
of clusters and traces.

Imports everything below it; nothing below imports commands.
"""

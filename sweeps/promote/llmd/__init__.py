"""Checks of the files that a promotion writes: closed schemas, and rules across files."""

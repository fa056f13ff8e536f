"""Formats of measured runs: each a file that recognises it and reads it."""

"""Derivatives measured: cases, speed, table, and those of a surrogate."""

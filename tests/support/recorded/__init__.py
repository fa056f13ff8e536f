"""Recorded runs of the reference, read for tests."""

"""Runs of points on common seeds for all studies: made in compiled calls, measured, stored part by part."""

"""Routing functions of Go read statement by statement."""

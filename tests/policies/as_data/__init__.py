"""Routing policies as tables of operations."""

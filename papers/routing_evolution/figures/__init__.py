"""Figures of the routing record; every script draws one from saved data."""

"""Files that appear whole or not at all: atomic writes, manifests, locks, and what a user's file must be.

Imports nothing of the simulator but its errors.
"""

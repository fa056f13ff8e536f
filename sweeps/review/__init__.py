"""Judges that probe candidate strategies in the simulator, and the consensus; see `python -m sweeps.review`."""

"""Judges that probe candidate strategies in the simulator, and the consensus; see `blis-jax review`."""

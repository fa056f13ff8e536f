"""The catalogue of principles and prior findings as executable checks; see `blis-jax principles`."""

USUAL_OUTPUT = "out/principles.json"

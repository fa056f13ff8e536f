"""The catalogue of principles and prior findings as executable checks; see `python -m sweeps.principles`."""

USUAL_OUTPUT = "out/principles.json"

"""The record of a run: requests, steps and instances, read from the engine's tables; and its invariants."""

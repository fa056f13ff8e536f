"""The law of a step's time, against steps that servers measured."""

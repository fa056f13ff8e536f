"""The record of every iteration: hypotheses before their runs, results after them, nothing removed."""

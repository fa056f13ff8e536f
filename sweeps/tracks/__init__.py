"""Tracks: a research question with its baseline, criteria and claims; `python -m sweeps.init` begins one."""

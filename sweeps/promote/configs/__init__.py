"""Configurations of a promotion: for each arm the picker's, vLLM's flags, objectives, scenario overlay."""

"""Turn a strategy that won in simulation into a change that llm-d's maintainers can review."""

DEFAULT_TARGET = "llm-d-router@0.10.0"  # a folder of `targets`
NAME = "sweeps.promote"  # of the command

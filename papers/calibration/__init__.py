"""Four measured vLLM runs: fit on one half, predict the other, and beside a published simulator."""

"""An instance's step: which requests are candidates, how the batch forms, its step time, and what its end changes."""

"""An instance's step: who is a candidate, how the batch forms, how long it takes, and what its end brings."""

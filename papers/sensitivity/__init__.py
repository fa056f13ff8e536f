"""Which parameters of the ledger's strategies matter, by the simulator and by surrogates."""

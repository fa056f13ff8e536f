"""The rows of the ledger: a hypothesis before its runs, a trial, a result after them, and the trial again."""

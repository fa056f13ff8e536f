"""Search over strategies and the record of it: optimisation, comparison, robustness, ledger."""

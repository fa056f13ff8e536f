"""The report on a surrogate and its figures."""

"""Reports of comparisons for people: one style for figures and pages, a page that opens offline, a trace of one run.

What every command shares; each command makes its own `Study`. Nothing here imports JAX.
"""

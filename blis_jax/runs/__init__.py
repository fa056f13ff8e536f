"""From one run to many: `simulate`, `run_grid` and derivatives, over one driver that repeats runs which did not fit.

`driver` makes runs in compiled calls (`calls`, `programs`) with static table sizes (`demand`). In a call, a row is one
run.
"""

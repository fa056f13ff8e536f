"""From one run to many: `simulate`, `run_grid` and derivatives, over one driver that repairs what did not fit.

`driver` runs rows in compiled calls (`programs`, `lanes`) with static sizes (`sizes`, `demand`) and hands results to
`results`.
"""

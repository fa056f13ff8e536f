"""The types and arithmetic that all parts of the simulator share: views and contracts, typed rows, rules of revisions,
outcomes, and exact arithmetic in float64 and whole microseconds.

The core imports no other package of ours but `lazy`, which loads JAX when it is first used.
"""

"""The reference's own requests: equal to those that BLIS draws for a specification and a seed."""

from blis_jax.workload.reference.arrays import draw, golden_arrays
from blis_jax.workload.reference.follow_up_table import ClosedLoop, draw_closed_loop
from blis_jax.workload.reference.generate import DrawnWorkload, drawn

__all__ = ["ClosedLoop", "DrawnWorkload", "draw", "draw_closed_loop", "drawn", "golden_arrays"]

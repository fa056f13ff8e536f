"""What a comparison says of requests that did not come to their end."""

from __future__ import annotations

from blis_jax.core.outcome import Outcome
from blis_jax.metrics.run_summary import RunSummary
from sweeps.compare.document import survivors
from sweeps.compare.report import failure_lines


def ended(completed: float, arrived: float) -> RunSummary:
    return RunSummary(
        Outcome.HORIZON, {"num_completed": completed, "num_arrived": arrived}, fingerprint="x"
    )


def test_completed_and_arrived_are_counted_over_all_seeds() -> None:
    failed = RunSummary(Outcome.LIVELOCK)
    assert survivors([ended(3, 10), ended(4, 10), failed]) == [7, 20]
    assert survivors([RunSummary(Outcome.COMPLETED)]) is None  # of a record that has not kept them


def test_figures_of_survivors_are_called_so() -> None:
    def lines(counts: list[int] | None) -> list[str]:
        arm = {"name": "a", "failure": None, "num_broken_invariants": 0, "survivors": counts}
        return failure_lines({"arms": [arm], "seeds": [1, 2]})

    assert lines([7, 20]) == [
        "a: 7 of the 20 requests that arrived have completed; latencies are of those that came so far"
    ]
    assert lines([20, 20]) == lines(None) == []

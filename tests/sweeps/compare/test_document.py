"""What a comparison says of requests that did not come to their end."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from blis_jax.cluster.config import ClusterConfig
from blis_jax.core.outcome import Outcome
from blis_jax.files.python_files import with_absolute_files
from blis_jax.metrics.run_summary import RunSummary
from sweeps.compare.document import survivors
from sweeps.compare.report import failure_lines
from sweeps.compare.study import window_lines
from sweeps.strategies.arms import policy_files, settings_anywhere
from sweeps.strategies.moved import arguments
from tests.support.recorded.reference_data import REPO_ROOT


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
    assert lines([0, 20]) == [
        "a: none of the 20 requests that arrived has completed: there is no E2E and no TPOT"
    ]
    assert lines([20, 20]) == lines(None) == []


def test_files_of_policies_are_absolute_and_have_a_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A result holds in any folder; a policy that comes with a package keeps the name that works anywhere."""
    text = (
        "import jax.numpy as jnp\nfrom blis_jax.policies import routing_policy\n\n\n@routing_policy()\n"
        "def first(params, state, context):\n"
        "    return jnp.argmax(context.snapshots.is_active), state\n"
    )
    (tmp_path / "mine.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    config = ClusterConfig(num_instances=2, routing_policy="mine.py:first")
    path = str(tmp_path / "mine.py")
    assert settings_anywhere(config)["routing_policy"] == f"{path}:first"
    assert f"{path}:first" in arguments(config)
    assert policy_files(config) == {path: hashlib.sha256(text.encode()).hexdigest()}
    packaged = next((REPO_ROOT / "sweeps" / "strategies" / "policies").glob("*.py"))
    name = f"sweeps/strategies/policies/{packaged.name}:X"
    assert with_absolute_files(name) == name


def test_windows_that_are_short_against_the_time_of_requests_are_told() -> None:
    """42.5 s in 16 windows of 2.66 s, on a server whose slowest requests take 3.4 s."""

    def lines(windows: int | None, e2e_ms: float | None) -> str:
        figures = {"all": {"pooled_e2e_p99_ms": {"mean": e2e_ms}}}
        arms = [
            {"name": "a", "figures": figures},
            {"name": "b", "figures": {"all": {"pooled_e2e_p99_ms": {"mean": 10.0}}}},
        ]
        trace = {"windows": windows, "span_s": 42.5}
        return " ".join(window_lines({"arms": arms, "trace": trace}))

    assert lines(16, 3400.0).startswith(
        "windows of 2.66 s are short: 1 % of the requests of a take 3.4 s or more"
    )
    assert "give --trace-windows 2 or fewer, or no --trace-windows" in lines(16, 3400.0)
    assert "; give no --trace-windows" in lines(16, 8000.0)
    assert lines(16, 500.0) == lines(2, 3400.0) == lines(None, 3400.0) == lines(16, None) == ""
    assert not list(window_lines({"arms": [], "trace": None}))

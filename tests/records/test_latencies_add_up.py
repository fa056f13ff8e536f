"""The inter-token latencies of completed requests sum to E2E less TTFT, whatever happens to the requests."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import blis_jax.metrics.further  # noqa: F401  (registers the metrics of searches)
from blis_jax import Options, simulate
from blis_jax.cluster.config import ClusterConfig, from_flags
from blis_jax.commands.run.requests import draw_requests
from blis_jax.metrics.compiled import RunFigures
from blis_jax.metrics.measure import Measure
from blis_jax.metrics.reference import cluster_json, instance_block
from blis_jax.metrics.scalars import evaluate
from blis_jax.metrics.summaries import SloTargets
from blis_jax.policies.seeds import FIXED
from blis_jax.records.observation import unstack
from blis_jax.records.record import RunRecord, Status
from blis_jax.records.step_invariants import latencies_of_completed_requests
from blis_jax.records.step_records import itl_values, overlaps
from blis_jax.runs.calls import Call, Results, execute
from blis_jax.runs.driver import Runner
from blis_jax.runs.runs import GivenRun, Row
from blis_jax.workload.spec import load_builtin, override
from tests.engine.scenes.test_kept_output import KEEPS
from tests.engine.scenes.test_outage_scenes import Kind, harder, simulated
from tests.support.scenes import Prompt, flags, table_of, workload_of

CORRECTED = {"corrected": True}
KINDS: dict[str, tuple[Kind, dict[str, Any]]] = {
    "pools and outages": (Kind("pools", "few"), CORRECTED),
    "outages": (Kind("none", "few"), CORRECTED),
    "pools, outages, kept outputs": (Kind("pools", "few"), KEEPS),
    "outages, kept outputs": (Kind("none", "few"), KEEPS),
    "pools with blocks enough": (Kind("pools", "plenty"), CORRECTED),
    "pools, outages, February's defects": (Kind("pools", "few"), {}),
}
ITL = ("itl_mean_ms", "itl_p50_ms", "itl_p90_ms", "itl_p99_ms")
POOLS = [
    {"count": 1, "role": "prefill"},
    {"count": 1, "role": "decode", "max_num_running_reqs": 1},
]


def missing_us(record: RunRecord) -> float:
    """What the latencies lack of E2E less TTFT, over all completed requests."""
    values, weights = itl_values(record)
    requests = record.requests
    is_done = requests.status == Status.COMPLETED
    return float(requests.after_first_us[is_done].sum() - (values * weights).sum())


def checked(kind: Kind, changed: dict[str, Any], seeds: range) -> list[RunRecord]:
    """Records of scenes; where February's defects let steps overlap, latencies may only be more than the time."""
    found = [simulated(harder(seed, kind), kind.blocks, changed) for seed in seeds]
    for one in found:
        missing = missing_us(one)
        assert missing == 0 or (overlaps(one).overlapping_steps and missing < 0)
    assert sum(missing_us(one) == 0 for one in found) > 0.8 * len(found)
    return found


def test_scenes_with_hand_overs_and_lost_attempts() -> None:
    kind, changed = KINDS["pools and outages"]
    found = checked(kind, changed, range(40_000, 40_012))
    requests = [one.requests for one in found]
    is_done = [one.status == Status.COMPLETED for one in requests]
    for name in ("hand_overs", "restarts", "preemptions"):
        counts = zip(requests, is_done, strict=True)
        assert sum(int(getattr(one, name)[done].sum()) for one, done in counts) > 5, name


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", KINDS)
def test_scenes_of_every_kind(name: str) -> None:
    kind, changed = KINDS[name]
    checked(kind, changed, range(41_000, 41_060))


def handed(num_tokens: int = 6) -> tuple[ClusterConfig, Any]:
    """Four prompts at one prefill instance and one decode instance, which has one at a time; a transfer takes 20 ms."""
    settings = flags(
        instances=POOLS,
        num_instances=2,
        hand_over_policy="pools",
        beta_coeffs=[5000.0, 10.0, 100.0],
    )
    config = from_flags({**settings, "variant": "scheduling"})
    config = config.replace(pools_link_latency_us=20_000.0, corrected=True)
    prompts = [Prompt(1000 * at, 1024, num_tokens) for at in range(4)]
    return config, table_of(workload_of(prompts))


def test_the_first_gap_after_a_transfer_holds_it_and_the_wait() -> None:
    config, table = handed()
    record = simulate(config, table)
    requests = record.requests
    gaps = np.sort(requests.handed_gap_us)
    # a step of the decode instance takes 5,100 µs; the others wait for the five tokens of those before them
    transfer = int(requests.transfer_us[0])
    assert gaps[0] == transfer + requests.handed_wait_us[0] + 5100
    weights = itl_values(record)[1]
    assert int(weights.sum()) == 4 * 5 and missing_us(record) == 0
    tpot = (requests.e2e_us - requests.ttft_us) / 5
    block = cluster_json(record)
    assert block is not None
    assert block["itl_mean_ms"] == pytest.approx(tpot.mean() / 1e3)
    assert block["itl_p99_ms"] > 50
    decode = instance_block(record, 1)
    assert decode is not None and decode["itl_mean_ms"] == block["itl_mean_ms"]


def test_a_first_token_that_was_missed_counts_as_zero() -> None:
    """BLIS's run it09_kv1500_sloPre1_s44 has two such requests: 1,000 E2E and 998 TTFT."""
    record = simulate(*handed())
    requests = record.requests
    is_missed = np.arange(4) == 2
    changed = dataclasses.replace(
        requests,
        ttft_us=np.where(is_missed, -1, requests.ttft_us),
        e2e_us=np.where(is_missed, requests.e2e_us - requests.ttft_us, requests.e2e_us),
    )
    missed = dataclasses.replace(record, requests=changed)
    assert missing_us(missed) == 0
    assert latencies_of_completed_requests(missed) == 0


def test_the_compiled_call_has_the_same_latencies() -> None:
    config, table = handed()
    options, reports = Options(num_slots=16, log_capacity=256), []
    measured = RunFigures(ITL, SloTargets(), Measure({}, 0.0, 0.0))

    def noted(call: Call) -> Results:
        results = execute(call._replace(measured=measured))
        reports.append(results.report)
        return results

    record = Runner(options, num_rows=1).alone(GivenRun(Row(config, table, FIXED), options), noted)
    host = evaluate(record, ITL, SloTargets())
    found = unstack(reports[-1], 0).figures.tolist()
    assert found == pytest.approx([host[name] for name in ITL], rel=1e-9)
    assert host["itl_p99_ms"] > 50


TPOT = ("tpot_mean_ms", "tpot_p50_ms")


@pytest.mark.parametrize("lengths", [(1, 6, 1, 6), (1, 1, 1, 1)])
def test_a_request_of_one_token_has_no_time_per_output_token(lengths: tuple[int, ...]) -> None:
    config = from_flags({**flags(beta_coeffs=[5000.0, 10.0, 100.0]), "variant": "scheduling"})
    config = config.replace(corrected=True)
    table = table_of(workload_of([Prompt(9 * 10**6 * k, 64, n) for k, n in enumerate(lengths)]))
    options, reports = Options(num_slots=16, log_capacity=256), []
    measured = RunFigures(TPOT, SloTargets(), Measure({}, 0.0, 0.0))

    def noted(call: Call) -> Results:
        results = execute(call._replace(measured=measured))
        reports.append(results.report)
        return results

    record = Runner(options, num_rows=1).alone(GivenRun(Row(config, table, FIXED), options), noted)
    host = evaluate(record, TPOT, SloTargets())
    step_ms = 5.1  # of one sequence that decodes
    wanted = [step_ms if max(lengths) > 1 else np.nan] * 2
    assert list(host.values()) == pytest.approx(wanted, nan_ok=True)
    assert unstack(reports[-1], 0).figures.tolist() == pytest.approx(wanted, nan_ok=True)


@pytest.mark.slow
def test_in_august_the_overhead_after_the_last_token_is_in_e2e_alone() -> None:
    """777 µs for each request, as BLIS's coefficients have it; preempted requests make no exception."""
    spec = override(load_builtin("multiprefix"), num_requests=60)
    table = draw_requests(spec, 3, 16)[0]
    config = ClusterConfig(
        revision="blis-2026-08", num_instances=2, total_kv_blocks=60, max_num_scheduled_tokens=128
    )
    record = simulate(config, table)
    is_done = record.requests.status == Status.COMPLETED
    assert record.requests.preemptions[is_done].sum() > 0
    assert missing_us(record) == 777 * is_done.sum()

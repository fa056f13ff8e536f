"""Drafted tokens: against a plain oracle, against known truth, and what must not depend on what."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blis_jax import ClusterConfig, figures_of, over_seeds, run_grid, simulate
from blis_jax.core.outcome import Outcome
from blis_jax.core.types import SLO_CLASSES
from blis_jax.engine.mechanism import mechanism
from blis_jax.errors import ConfigError, UnsupportedError
from blis_jax.metrics.further import itl_per_token_mean_ms, mean_acceptance_length
from blis_jax.metrics.scalars import evaluate
from blis_jax.metrics.summaries import select
from blis_jax.policies import (
    Completion,
    DraftContext,
    GatewayContext,
    Policies,
    draft_policy,
    routing_policy,
)
from blis_jax.policies.seeds import RandomSource, policy_seed
from blis_jax.records.invariants import violations
from blis_jax.records.record import RunRecord
from blis_jax.runs.options import Options
from blis_jax.workload.spec import load_builtin, override
from tests.support.metric_laws import assert_metrics_agree
from tests.support.oracles.drafting import Served, Server, by_uniform, serve
from tests.support.recorded.reference_data import REPO_ROOT
from tests.support.scenes import Prompt, assert_same_arrays, table_of, workload_of

BETA, MANY = (1000.0, 10.25, 5.5), 100_000
ALONE = [Prompt(0, 40, 101)]
BUSY = [Prompt(700 * at, 20 + 7 * at % 50, 30 + 11 * at % 60) for at in range(20)]


def cluster(num: int, rate: object, **changes: object) -> ClusterConfig:
    """Instances that draft so many tokens by looking them up; keys of the drafts come with the settings."""
    drafts: dict[str, object] = {
        name: changes.pop(name)
        for name in (
            "acceptance",
            "draft_step_us",
            "draft_token_us",
            "num_speculative_tokens_per_batch_size",
        )
        if name in changes
    }
    drafts |= {"method": "ngram", "num_speculative_tokens": num, "acceptance_rate": rate}
    settings: dict[str, object] = {
        "beta_coeffs": BETA,
        "alpha_coeffs": (0.0, 0.0, 0.0),
        "total_kv_blocks": MANY,
        "max_num_running_reqs": 64,
        "speculative_config": drafts,
    }
    return ClusterConfig(**(settings | changes))


def run(
    config: ClusterConfig,
    prompts: Sequence[Prompt],
    seed: int = 0,
    policies: Policies | None = None,
    **options: object,
) -> RunRecord:
    table = table_of(workload_of(prompts))
    record = simulate(config, table, Options(**options), seed, policies=policies)
    assert record.outcome == Outcome.COMPLETED
    assert not any(violations(record).values())
    return record


def uniform_of(seed: int) -> Callable[[int, int], float]:
    """What decides on the drafts of a request in a step, by the engine's keys."""

    @jax.enable_x64(True)
    def uniform(request: int, turn: int) -> float:
        key = jax.random.key(np.uint64(policy_seed(seed)))
        for number in (RandomSource.DRAFTS.origin, request, turn):
            key = jax.random.fold_in(key, number)
        return float(jax.random.uniform(key, dtype=jnp.float64))

    return uniform


# --- the oracle -----------------------------------------------------------------------------------


@pytest.mark.parametrize("scene", range(12))
def test_every_step_is_that_of_a_plain_oracle(scene: int) -> None:
    assert not assert_equals_oracle(scene, MANY).any()


@pytest.mark.parametrize("scene", range(12))
def test_every_step_is_that_of_a_plain_oracle_where_blocks_run_out(scene: int) -> None:
    """Without prefixes, of which the oracle knows nothing."""
    assert assert_equals_oracle(scene, 10, least=6).any()


def assert_equals_oracle(scene: int, num_blocks: int, least: int = 1) -> np.ndarray:
    """Compare a random run with the oracle, and return how often each request was preempted."""
    draw = random.Random(scene)
    num, at, prompts = draw.randint(1, 4), 0, []
    for _ in range(draw.randint(least, 12)):
        at += draw.choice([0, 1, 500, 3000])
        prompts.append(
            Prompt(at, draw.randint(1, 60), draw.randint(1, 40), slo_class=draw.randint(0, 3))
        )
    rates = {"other": [draw.random() for _ in range(num)], "critical": draw.random()}
    ranges = draw.choice([None, [[1, 2, num], [3, 100, max(num - 2, 0)]]])
    seqs, budget = draw.choice([(4, 32), (8, 64), (64, 512)])
    config = cluster(
        num,
        rates,
        max_num_running_reqs=seqs,
        max_num_scheduled_tokens=budget,
        num_speculative_tokens_per_batch_size=ranges,
        draft_step_us=draw.choice([0.0, 37.5]),
        draft_token_us=draw.choice([0.0, 3.3]),
        total_kv_blocks=num_blocks,
        enable_prefix_caching=num_blocks == MANY,
    )
    drafts = config.speculative_config
    model = "auto" if num_blocks == MANY else "block-level"
    record = run(config, prompts, scene, kv_model=model)
    served = [
        Served(at, one.arrival_us, one.input_len, one.output_len, SLO_CLASSES[one.slo_class])
        for at, one in enumerate(prompts)
    ]
    server = Server(
        BETA,
        seqs,
        budget,
        16,
        drafts.draft_step_us,
        drafts.draft_token_us,
        drafts.schedule,
        num_blocks,
    )
    reach = {name: drafts.reach(name) for name in SLO_CLASSES}
    steps = serve(server, served, by_uniform(reach, uniform_of(scene)))
    requests, made = record.requests, record.steps
    np.testing.assert_array_equal(requests.e2e_us, [one.e2e for one in served])
    np.testing.assert_array_equal(requests.ttft_us, [one.ttft for one in served])
    np.testing.assert_array_equal(requests.num_itl, [len(one.gaps) for one in served])
    np.testing.assert_array_equal(made.start_us, [step.start for step in steps])
    np.testing.assert_array_equal(made.duration_us, [step.duration for step in steps])
    np.testing.assert_array_equal(made.running, [step.running for step in steps])
    np.testing.assert_array_equal(made.used_blocks, [step.used_blocks for step in steps])
    extra = [sum(tokens - 1 for _, tokens in one.gaps) for one in served]
    np.testing.assert_array_equal(requests.accepted_tokens, extra)
    np.testing.assert_array_equal(requests.preemptions, [one.preemptions for one in served])
    return requests.preemptions


# --- known truth ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("num", "rate"), [(1, 0.5), (3, 0.7), (4, 0.9)])
def test_the_mean_accepted_length_is_a_geometric_sum(num: int, rate: float) -> None:
    prompts = [Prompt(50 * at, 10, 400) for at in range(40)]
    record = run(cluster(num, rate), prompts)
    expected = (1 - rate ** (num + 1)) / (1 - rate)
    # six standard errors, and what the ends of answers cut of each 100th verification
    measured = mean_acceptance_length(record)
    assert measured == pytest.approx(expected, abs=0.03 * num)
    as_expected = run(cluster(num, rate, acceptance="expected"), prompts)
    assert mean_acceptance_length(as_expected) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("num", [1, 2, 3, 7])
def test_all_drafts_accepted_give_each_step_one_more_token_than_drafts(num: int) -> None:
    for acceptance in ("drawn", "expected"):
        record = run(cluster(num, 1.0, acceptance=acceptance), ALONE)
        steps = -(-100 // (num + 1))
        assert record.requests.num_itl[0] == steps
        # a prompt of 40 tokens, then steps that take their decode term so many times
        assert record.requests.ttft_us[0] == 1410
        assert record.requests.e2e_us[0] == 1410 + steps * int(1000 + 5.5 * (num + 1))
        assert record.drafts is not None
        assert record.drafts.num_accepted_tokens.sum() == 100 - steps
        assert record.drafts.num_draft_tokens.sum() == num * steps


def test_expectations_add_up_to_whole_tokens() -> None:
    record = run(
        cluster(2, 0.5, acceptance="expected", draft_step_us=100.0, draft_token_us=1.5), ALONE
    )
    # 0.75 drafts a step: after n steps n + floor(0.75 n) tokens, and 100 of them are there after 58
    assert record.requests.num_itl[0] == 58
    assert record.requests.e2e_us[0] == 1410 + 58 * int(1000 + 3 * 5.5 + 2 * 100 + 2 * 1.5)


def test_drafts_that_are_never_accepted_change_only_what_steps_cost() -> None:
    free = (1000.0, 10.25, 0.0)  # no decode term
    without = run(cluster(0, 0.0, corrected=True, beta_coeffs=free), BUSY)
    record = run(cluster(3, 0.0, beta_coeffs=free), BUSY)
    for name in ("ttft_us", "e2e_us", "num_itl", "progress_index"):
        np.testing.assert_array_equal(
            getattr(record.requests, name), getattr(without.requests, name)
        )
    assert record.drafts is not None
    assert not record.drafts.num_accepted_tokens.any()
    costly = run(cluster(3, 0.0), BUSY)
    assert costly.requests.e2e_us.sum() > record.requests.e2e_us.sum()


def test_without_drafts_the_program_is_another_one() -> None:
    plain = ClusterConfig(corrected=True)
    none = plain.replace(speculative_config={"method": "eagle", "num_speculative_tokens": 0})
    assert mechanism(none) == mechanism(plain)
    assert none.speculative_config == plain.speculative_config
    assert mechanism(cluster(3, 0.5)).num_drafts == mechanism(cluster(2, 0.9)).num_drafts == 4


# --- laws -----------------------------------------------------------------------------------------


def test_laws_of_metrics_hold() -> None:
    record = run(
        cluster(3, {"other": 0.7, "critical": [0.9, 0.5, 0.1]}), BUSY, kv_model="no-eviction"
    )
    assert_metrics_agree(record)
    requests = record.requests
    assert (requests.num_itl + requests.accepted_tokens + 1 == requests.output_len).all()
    assert (record.instances.total_output_tokens.sum()) == (requests.output_len - 1).sum()
    assert not record.instances.used_blocks_at_end.any()
    per_token = itl_per_token_mean_ms(select(record))
    after_first = (requests.e2e_us - requests.ttft_us).sum() / (requests.output_len - 1).sum()
    assert per_token == pytest.approx(after_first / 1000)
    assert per_token < evaluate(record, ["itl_mean_ms"])["itl_mean_ms"]


def test_metrics_of_a_compiled_call_are_the_same() -> None:
    spec = override(load_builtin("mixed"), num_requests=0, horizon=300_000)
    config, options = cluster(3, 0.7, num_instances=2), Options(resolve_ties=False)
    names = ("e2e_mean_ms", "tpot_p90_ms", "itl_mean_ms", "itl_per_token_mean_ms", "tokens_per_sec")
    names = (*names, "mean_acceptance_length")
    measured = figures_of(names)
    (seeds,) = run_grid([config], spec, range(2), measured, options).rows
    for record, figures in zip(
        over_seeds(config, spec, range(2), options=options), seeds, strict=True
    ):
        assert dict(figures.metrics) == pytest.approx(evaluate(record, names), rel=1e-12)


def test_a_horizon_counts_only_steps_that_were_made() -> None:
    config = cluster(3, 0.7)
    whole = simulate(config, table_of(workload_of(BUSY)))
    cut = simulate(config.replace(horizon=40_000), table_of(workload_of(BUSY)))
    assert cut.outcome == Outcome.HORIZON
    assert not any(violations(cut).values())
    assert_metrics_agree(cut)
    done = cut.requests.e2e_us >= 0
    assert 0 < done.sum() < len(done)
    np.testing.assert_array_equal(cut.requests.e2e_us[done], whole.requests.e2e_us[done])


def test_draws_depend_on_the_request_and_its_step_alone() -> None:
    rates = [0.8, 0.6, 0.5]
    early = run(cluster(3, rates), BUSY)
    # the same requests at other times, in other batches, on two instances
    later = [dataclasses.replace(one, arrival_us=9 * one.arrival_us) for one in BUSY]
    other = run(cluster(3, rates, num_instances=2, beta_coeffs=(5000.0, 3.0, 70.0)), later)
    np.testing.assert_array_equal(early.requests.num_itl, other.requests.num_itl)
    again = run(cluster(3, rates), BUSY)
    assert_same_arrays(early, again)
    assert (run(cluster(3, rates), BUSY, seed=1).requests.num_itl != early.requests.num_itl).any()


def test_arms_have_their_draws_in_common() -> None:
    """More drafts, or better ones, never take more steps of any request."""
    arms = [run(cluster(num, rate), BUSY) for num, rate in ((1, 0.5), (3, 0.5), (3, 0.8), (3, 1.0))]
    steps = np.stack([arm.requests.num_itl for arm in arms])
    assert (np.diff(steps, axis=0) <= 0).all()
    assert (np.diff(steps, axis=0) < 0).any(axis=1).all()


TOLD: dict[int, float] = {}


def note(params: object, state: jax.Array, news: Completion) -> jax.Array:
    """Remember the E2E of the latest completion."""
    return news.e2e_us


@routing_policy(start=lambda params, shape: jnp.float64(-1.0), observe=note)
def listening(params: object, state: jax.Array, context: GatewayContext) -> Any:
    """The first instance; reports what it has heard last."""

    def heard(rank: np.ndarray, e2e_us: np.ndarray) -> None:
        TOLD[int(rank)] = float(e2e_us)

    jax.debug.callback(heard, context.request.tie_rank, state)
    return jnp.int32(0), state


def test_policies_hear_of_the_latencies_that_the_record_has() -> None:
    """Also where each output that is handed out takes its time, once for all tokens of a step."""
    prompts = [Prompt(200_000 * at, 40, 30 + 20 * at) for at in range(4)]
    config = cluster(3, 0.8, alpha_coeffs=(0.0, 0.0, 50.0))
    table = table_of(workload_of(prompts))
    record = simulate(config, table, policies=Policies(routing=listening))
    jax.effects_barrier()
    requests = record.requests
    np.testing.assert_array_equal(
        requests.e2e_us, requests.left_us - requests.arrival_us + 50 * (1 + requests.num_itl)
    )
    ranks = np.asarray(table.tie_rank)[: len(prompts)]
    told = [TOLD[int(rank)] for rank in ranks]
    np.testing.assert_array_equal(told, [-1, *requests.e2e_us[:-1]])


@pytest.mark.parametrize("scene", range(6))
def test_laws_hold_beside_prefixes_chunks_and_classes(scene: int) -> None:
    assert not mixed_run(scene).instances.preemption_count.any()


@pytest.mark.parametrize("scene", range(3))
def test_laws_hold_beside_preemption(scene: int) -> None:
    record = mixed_run(scene, total_kv_blocks=10, kv_model="block-level")
    assert record.instances.preemption_count.any()
    resumed = record.preemptions.gap_us >= 0
    assert resumed.any()


def mixed_run(scene: int, total_kv_blocks: int = MANY, kv_model: str = "auto") -> RunRecord:
    """Return a run of requests some of which share a prefix, whose laws hold."""
    draw, at, prompts = random.Random(scene), 0, []
    for _ in range(20):
        at, group = at + draw.choice([0, 0, 300, 2500]), draw.randint(-1, 1)
        shared = 32 if group >= 0 else 0
        own = draw.choice([0, 5, 16, 40]) if shared else 7
        length, slo_class = draw.randint(1, 40), draw.randint(0, 5)
        prompts.append(Prompt(at, shared + own, length, slo_class, group, shared))
    config = cluster(
        3,
        draw.random(),
        alpha_coeffs=(draw.choice([0.0, 100.0]), 0.5, draw.choice([0.0, 40.0])),
        max_num_running_reqs=8,
        max_num_scheduled_tokens=64,
        num_instances=draw.choice([1, 2]),
        long_prefill_token_threshold=draw.choice([0, 16]),
        num_speculative_tokens_per_batch_size=[[1, 3, 3], [4, 100, 1]],
        total_kv_blocks=total_kv_blocks,
    )
    record = run(config, prompts, scene, kv_model=kv_model)
    assert_metrics_agree(record)
    requests = record.requests
    assert (requests.num_itl + requests.accepted_tokens + 1 == requests.output_len).all()
    assert requests.cached_tokens_first_sched.sum() > 0
    assert not record.instances.used_blocks_at_end.any()
    return record


def test_both_models_of_memory_are_the_same_where_nothing_runs_out() -> None:
    config = cluster(3, 0.7, num_speculative_tokens_per_batch_size=[[1, 4, 3], [5, 99, 1]])
    one, other = run(config, BUSY), run(config, BUSY, kv_model="block-level")
    assert_same_arrays(one, other)


@draft_policy()
def by_batch(params: object, state: object, context: DraftContext) -> Any:
    """Three drafts in small batches, one in others, as the schedule of a test has it."""
    return jnp.where(context.num_running <= 4, 9, 1), state


@draft_policy()
def until_rejected(params: object, state: object, context: DraftContext) -> Any:
    """What the settings say, until a draft was rejected."""
    is_new = context.num_accepted_tokens == context.num_draft_tokens
    return jnp.where(is_new, context.num_speculative_tokens, -1), state


def test_a_policy_decides_how_many_tokens_are_drafted() -> None:
    schedule = [[1, 4, 3], [5, 99, 1]]
    config = cluster(3, 0.7)
    decided = run(config, BUSY, policies=Policies(draft=by_batch))
    scheduled = run(cluster(3, 0.7, num_speculative_tokens_per_batch_size=schedule), BUSY)
    assert_same_arrays(decided, scheduled)
    never = run(cluster(3, 0.0), BUSY, policies=Policies(draft=until_rejected))
    assert never.drafts is not None
    assert never.drafts.num_draft_tokens.sum() == 3
    with pytest.raises(ConfigError, match=r"draft policy by_batch says .* set speculative_conf"):
        mechanism(
            config.replace(speculative_config={"num_speculative_tokens": 0}),
            Policies(draft=by_batch),
        )


def test_the_policy_of_the_example_drafts_less_where_less_is_accepted() -> None:
    """`examples/drafts/best_rate.py`."""
    path = REPO_ROOT / "examples/drafts/best_rate.py"
    kept, thrown = (
        run(cluster(3, rate, draft_policy=f"{path}:best_rate"), BUSY).drafts for rate in (0.9, 0.1)
    )
    assert kept is not None and thrown is not None
    each = [drafts.num_draft_tokens.sum() / drafts.num_drafts.sum() for drafts in (kept, thrown)]
    assert each[0] > 2 > each[1]


def test_what_has_no_rule_yet_is_refused() -> None:
    small = cluster(3, 0.5, total_kv_blocks=12, preemption_mode="restart")
    options = Options(kv_model="block-level")
    with pytest.raises(UnsupportedError, match="set preemption_mode recompute"):
        simulate(small, table_of(workload_of(BUSY)), options)
    urgent = small.replace(preemption_mode="recompute", slo_preemption=True)
    with pytest.raises(UnsupportedError, match="leave victim_policy and slo_preemption out"):
        simulate(urgent, table_of(workload_of(BUSY)), options)
    talk = [Prompt(0, 40, 40), Prompt(100_000, 100, 10, continues=0)]
    with pytest.raises(UnsupportedError, match="later prompts hold earlier answers"):
        simulate(cluster(3, 0.5), table_of(workload_of(talk)))


@pytest.mark.slow
def test_drawn_runs_and_lanes_are_the_same() -> None:
    spec = override(load_builtin("mixed"), num_requests=0, horizon=300_000)
    config = cluster(
        3, 0.7, num_instances=2, routing_policy="weighted", beta_coeffs=(7000.0, 17.0, 20.0)
    )
    alone = over_seeds(config, spec, range(3), options=Options(resolve_ties=False))
    lanes = over_seeds(
        config, spec, range(3), options=Options(resolve_ties=False, form="lanes", num_lanes=3)
    )
    for one, other in zip(alone, lanes, strict=True):
        assert one.drafts is not None
        assert one.drafts.num_drafts.sum() > 0
        assert_same_arrays(one, other)

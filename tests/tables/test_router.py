"""Signals that are old: none at age 0, BLIS's interval for the KV fields alone, the oracle's runs for the rest."""

import dataclasses
from typing import Any

import hypothesis
import jax
import numpy as np
import pytest
from hypothesis import strategies as st

from blis_jax import ClusterConfig, over_params
from blis_jax.cluster import config
from blis_jax.core.outcome import WHOLE, Outcome
from blis_jax.engine.mechanism import mechanism, of_one_program, params
from blis_jax.errors import ConfigError
from blis_jax.policies.seeds import policy_seed
from blis_jax.runs.many_runs import simulate
from blis_jax.runs.options import Options
from blis_jax.runs.programs import compiled
from blis_jax.tables.router import Entrances, LateNews, RouterIndex
from blis_jax.workload.spec import load_builtin, override
from tests.engine.test_properties import FAILURES, NODES, OPTIONS, PHASES, STATICS, Scene, scenes
from tests.engine.test_scan_step import BATCHED_SHAPE
from tests.support.oracles.aged_signals import aged
from tests.support.scenes import (
    Prompt,
    assert_same_arrays,
    burst,
    differences,
    first_state_of,
    flags,
    table_of,
    workload_of,
)

AGED = (STATICS[4], STATICS[6])  # weighted with the default scorers, and with all of them
GATED = (STATICS[7], STATICS[3])  # by queue depth, and by the mean load


@st.composite
def ages(draw: Any) -> dict[str, Any]:
    """Settings of old signals; some are new."""

    def pick(*values: Any) -> Any:
        return draw(st.sampled_from(values))

    return {
        "snapshot-refresh-interval": pick(0, 1000, 5000),
        "load-refresh-interval": pick(0, 1, 700, 5000, 40_000),
        "snapshot-phases": pick("aligned", "even", "drawn"),
        "in-flight-counts": pick(True, True, False),
        "prefix-index-delay": pick(0, 1, 1500, 30_000),
    }


def aged_run(scene: Scene, ours: dict[str, Any], seed: int = 3) -> tuple[Any, Any]:
    """The engine's run, in the program where signals age, and the oracle's."""
    settings = {**scene.flags, **ours}
    cluster = config.from_flags({**settings, "variant": scene.static.variant})
    record = simulate(cluster, table_of(scene.workload, **NODES), OPTIONS, seed)
    phases = params(cluster, policy_seed=policy_seed(seed)).cluster.signals.phase
    return record, aged(scene.workload, settings, scene.static.variant, np.asarray(phases))


def check_equal(record: Any, expected: Any, scene: Scene) -> None:
    """The run equals the oracle's, or both fail for one reason."""
    if record.outcome not in WHOLE:
        assert FAILURES[record.outcome] == expected.outcome.partition(":")[0]
        return
    assert not differences(record, expected, scene.static.block_size)


def check_aged(scene: Scene, ours: dict[str, Any]) -> None:
    check_equal(*aged_run(scene, ours), scene)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@hypothesis.settings(max_examples=60, phases=PHASES)
@hypothesis.given(scenes((*AGED, *GATED)), ages())
def test_old_signals_equal_the_oracle(scene: Scene, ours: dict[str, Any]):
    """Under memory pressure too, and at age 0."""
    check_aged(scene, ours)


def roomy(seed: int) -> Scene:
    """40 requests within 60 ms on four instances with plenty of memory."""
    static = STATICS[6]._replace(has_cpu_tier=False, slo_preemption=False)
    beta = [float(np.random.default_rng(seed).integers(500, 4000)), 10.0, 1.0]
    settings = flags(
        num_instances=4, routing_policy="weighted", beta_coeffs=beta, alpha_coeffs=[800.0, 0.0, 0.0]
    )
    return Scene(workload_of(burst(seed)), settings, static)


@pytest.mark.parametrize("seed", range(12))
def test_old_signals_in_plenty_of_memory_equal_the_oracle(seed: int):
    """All in one program, so that these cases stay fast."""
    rng = np.random.default_rng(seed)
    ours = {
        "snapshot-refresh-interval": int(rng.choice([0, 1000, 7000])),
        "load-refresh-interval": int(rng.choice([1, 500, 3000, 20_000])),
        "snapshot-phases": str(rng.choice(["aligned", "even", "drawn"])),
        "in-flight-counts": bool(rng.integers(2)),
        "prefix-index-delay": int(rng.choice([1, 2000, 10_000])),
    }
    check_aged(roomy(seed), ours)


# --- none of it -----------------------------------------------------------------------------------

SPEC = override(load_builtin("mixed"), num_requests=60)
CLUSTER = ClusterConfig(num_instances=4, routing_policy="weighted")


@pytest.fixture(scope="module")
def map_of_ages() -> tuple[list[ClusterConfig], Any, int]:
    """From age and loss 0 on, BLIS's interval among them, all on one seed; and how many programs that took."""
    old = {"load_refresh_interval": 100_000, "prefix_index_delay": 50_000}
    configs = [
        CLUSTER,
        CLUSTER.replace(snapshot_refresh_interval=20_000),
        CLUSTER.replace(**old),
        CLUSTER.replace(**old, snapshot_phases="even"),
        CLUSTER.replace(**old, snapshot_phases="drawn", in_flight_counts=False),
        CLUSTER.replace(prefix_index_loss=1.0),
        CLUSTER.replace(prefix_index_loss=0.5),
    ]
    before = compiled.cache_info().misses
    found = over_params(configs, SPEC, 5)
    return configs, found, compiled.cache_info().misses - before


def test_a_map_from_age_0_on_compiles_once(map_of_ages):
    _, found, num_programs = map_of_ages
    assert num_programs <= 2  # one draws, and one simulates
    assert all(one.outcome == Outcome.COMPLETED for one in found)


@pytest.mark.slow
@pytest.mark.parametrize("place", [0, 1])
def test_what_blis_knows_is_the_same_run_in_the_program_where_signals_age(place, map_of_ages):
    """Age 0, and BLIS's interval of the KV fields, against the program that has none of this."""
    configs, found, _ = map_of_ages
    assert not mechanism(configs[place]).ages_signals
    assert_same_arrays(found[place], over_params([configs[place]], SPEC, 5)[0])


def test_every_age_of_the_map_shows(map_of_ages):
    _, found, _ = map_of_ages
    places = [one.requests.instance.tolist() for one in found]
    assert places[2] != places[0] and places[3] != places[2] and places[4] != places[3]


def test_the_index_knows_nothing_of_what_it_never_hears_of(map_of_ages):
    _, found, _ = map_of_ages
    known, none, some = (found[place].requests.expected_cached_tokens for place in (0, 5, 6))
    assert none.max() == 0 and 0 < some.sum() < known.sum()


@pytest.mark.slow
def test_losses_are_drawn_anew_on_every_seed_and_are_as_frequent_as_given():
    """One prompt for all and one instance: a request finds it from the first routing on that is heard of."""
    shared = [Prompt(9000 * at, 64, 1, group=0, prefix_len=64) for at in range(40)]
    lossy = ClusterConfig(routing_policy="weighted", prefix_index_loss=0.9)
    table = table_of(workload_of(shared))
    firsts = []
    for seed in range(40):
        run = simulate(lossy, table, seed=seed)
        firsts.append(int((run.requests.expected_cached_tokens > 0).argmax()))
    # the mean of a geometric law is 10; its standard error over 40 seeds 1.5
    assert len(set(firsts)) > 5 and 5 < np.mean(firsts) < 15


@pytest.mark.slow
def test_the_form_for_gpus_gives_the_same_runs(map_of_ages):
    configs, found, _ = map_of_ages
    lanes = over_params(configs, SPEC, 5, options=Options(form="lanes", resolve_ties=False))
    for one, other in zip(found, lanes, strict=True):
        assert_same_arrays(one, other)


def test_phases_are_drawn_anew_on_every_seed():
    drawn = CLUSTER.replace(snapshot_phases="drawn")
    first, again, other = (
        np.asarray(params(drawn, policy_seed=seed).cluster.signals.phase) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    even = params(CLUSTER.replace(snapshot_phases="even"), num_rows=6).cluster.signals.phase
    np.testing.assert_array_equal(even[:4], [0.0, 0.25, 0.5, 0.75])


def test_mechanisms_that_differ_in_more_than_ages_stay_apart():
    plain, old = mechanism(CLUSTER), mechanism(CLUSTER.replace(load_refresh_interval=1))
    other = mechanism(CLUSTER.replace(routing_policy="least-loaded"))
    first, second, third = of_one_program([plain, old, other])
    assert first == second == old and third == other


# --- one signal at a time -------------------------------------------------------------------------


def routed(prompts: list[Prompt], **settings: Any) -> list[int]:
    """The instance of every request, on two instances whose steps take 3 ms; queueing takes 500 µs."""
    cluster = config.from_flags(
        flags(num_instances=2, alpha_coeffs=[500.0, 0.0, 0.0], beta_coeffs=[3000.0, 0.0, 0.0])
    )
    changed = cluster.replace(**settings)
    return simulate(changed, table_of(workload_of(prompts))).requests.instance.tolist()


def test_a_view_of_the_load_stays_until_the_next_look():
    """One request each ms, each in an instance for 20 ms. Looks are at 10 and 20 ms.

    Until 10 ms both look empty and instance 0 gets all. What was sent less than 500 µs ago would show at once,
    but no two are that close.
    """
    prompts = [Prompt(1000 * at, 20, 6) for at in range(12)]
    fresh = routed(prompts, routing_policy="least-loaded")
    old = routed(prompts, routing_policy="least-loaded", load_refresh_interval=10_000)
    assert fresh[:6] == [0, 1, 0, 1, 0, 1]
    assert old == [0] * 10 + [1] * 2


def test_what_is_in_flight_is_known_at_once_unless_it_does_not_count():
    """Four requests within the 500 µs that queueing takes, and an old view."""
    prompts = [Prompt(100 * at, 20, 6) for at in range(4)]
    old = {"routing_policy": "least-loaded", "load_refresh_interval": 10_000}
    assert routed(prompts, **old) == [0, 1, 0, 1]
    assert routed(prompts, **old, in_flight_counts=False) == [0, 0, 0, 0]


def test_even_phases_show_one_instance_earlier():
    """Instance 1 is looked at after 5 ms, instance 0 after 10 ms, each every 10 ms from then on.

    From 10 ms on instance 0 shows its ten requests and instance 1 is still empty in the look at 5 ms; so it gets
    the requests up to its own look at 15 ms.
    """
    prompts = [Prompt(1000 * at, 20, 40) for at in range(17)]
    old = {"routing_policy": "least-loaded", "load_refresh_interval": 10_000}
    assert routed(prompts, **old, snapshot_phases="even") == [0] * 10 + [1] * 7
    busy = [Prompt(0, 20, 40), *(Prompt(6000 + 1000 * at, 20, 40) for at in range(6))]
    # instance 1 has been looked at and is empty, instance 0 shows its one request from 10 ms on
    assert routed(busy, **old, snapshot_phases="even") == [0, 0, 0, 0, 0, 1, 1]


def test_a_prompt_counts_as_cached_after_the_delay():
    """A match outweighs one request of load, if the index knows of it."""
    settings = {
        "routing_policy": "weighted",
        "routing_scorers": "prefix-affinity:2,queue-depth:1",
    }
    late = Prompt(0, 170, 40, group=0, prefix_len=160)
    pair = {gap: [late, dataclasses.replace(late, arrival_us=gap)] for gap in (1000, 2000, 2001)}
    assert routed(pair[1000], **settings) == [0, 0]
    assert routed(pair[1000], **settings, prefix_index_delay=2000) == [0, 1]
    assert routed(pair[2000], **settings, prefix_index_delay=2000) == [0, 0]
    assert routed(pair[2000], **settings, prefix_index_delay=2001) == [0, 1]
    # a second touch does not make an entry new again
    three = [*pair[2001], dataclasses.replace(late, arrival_us=3000)]
    assert routed(three, **settings, prefix_index_delay=2000) == [0, 0, 0]


def test_the_network_delay_is_part_of_the_time_on_the_way():
    groups = ({"count": 1}, {"count": 1, "network_delay": 700})
    plain = params(ClusterConfig(num_instances=2)).cluster.alpha
    far = params(ClusterConfig(instances=groups)).cluster.alpha
    np.testing.assert_array_equal(far - plain, [[0, 0, 0], [700, 0, 0]])
    none = params(ClusterConfig(num_instances=2, network_delay=0)).cluster.alpha
    np.testing.assert_array_equal(none, plain)


@pytest.mark.slow
def test_a_request_is_on_its_way_for_the_network_delay_of_its_instance():
    """Round-robin over two groups, the second of which is 700 µs away; the router counts what is on its way."""
    prompts = [Prompt(10_000 * at, 20, 2) for at in range(4)]
    groups = ({"count": 1}, {"count": 1, "network_delay": 700})
    alpha, beta = (500.0, 0.0, 0.0), (3000.0, 0.0, 0.0)
    near = ClusterConfig(num_instances=2, alpha_coeffs=alpha, beta_coeffs=beta)
    table = table_of(workload_of(prompts))
    plain = simulate(near, table).requests
    far = simulate(near.replace(instances=groups), table).requests
    for name in ("queued_at_us", "ttft_us", "e2e_us", "left_us"):
        assert (getattr(far, name) - getattr(plain, name)).tolist() == [0, 700, 0, 700]
    there = simulate(near.replace(network_delay=0), table).requests
    np.testing.assert_array_equal(there.ttft_us, plain.ttft_us)


# --- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"snapshot_phases": "evn"}, "use aligned or even or drawn; did you mean 'even'"),
        ({"load_refresh_interval": -1}, "load_refresh_interval must be at least 0, got -1"),
        ({"prefix_index_delay": 2.5}, "prefix_index_delay: 2.5 is not a whole number"),
        ({"prefix_index_loss": 1.5}, "prefix_index_loss must be between 0 and 1, got 1.5"),
        ({"network_delay": -1}, "network_delay must be at least 0, got -1"),
        ({"in_flight_counts": "no"}, "in_flight_counts: 'no' is not true or false"),
        ({"load_refresh_intervall": 1}, "did you mean 'load_refresh_interval'"),
    ],
)
def test_a_wrong_setting_is_refused_in_a_sentence(given: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        ClusterConfig(**given)


def test_a_run_without_old_signals_carries_none_of_this():
    def state(**settings: Any) -> Any:
        cluster = ClusterConfig(num_instances=2, routing_policy="weighted", **settings)
        return first_state_of(cluster, BATCHED_SHAPE)

    plain, old = state(snapshot_refresh_interval=9), state(load_refresh_interval=9)
    assert plain.stale.kv[0].shape == (1, 2)  # of the KV caches the scorers read utilisation alone
    assert state(routing_scorers="queue-depth:1").stale.kv == ()
    assert Entrances not in plain[RouterIndex]
    assert len(jax.tree.leaves(old)) == len(jax.tree.leaves(plain)) + 4
    assert state(prefix_index_delay=9)[RouterIndex][Entrances].at.shape == (17, 2)
    assert LateNews not in plain and LateNews not in state(precise_kv_routing=True)

"""Random small clusters and workloads: the engine equals the oracle in every array."""

import dataclasses
from typing import Any, NamedTuple

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from blis_jax.cluster.config import NO_HORIZON
from blis_jax.core.outcome import WHOLE, Outcome
from blis_jax.prefix_index import router_index
from blis_jax.records.record import BLOCK_LEVEL, NO_EVICTION, RunRecord, Status
from blis_jax.records.step_records import expand_steps
from blis_jax.runs import demand
from blis_jax.runs.many_runs import simulate
from blis_jax.runs.options import Options
from blis_jax.runs.programs import compiled
from tests.support.oracles import oracle, precise_index
from tests.support.scenes import Prompt, differences, flags, from_flags, table_of, workload_of

# Without the phase that explains: it traces every line of Python, also of compilations.
PHASES = (hypothesis.Phase.explicit, hypothesis.Phase.generate, hypothesis.Phase.shrink)

OPTIONS = Options(
    max_scan_steps=8_000_000,  # a run that does not end is a bug of ours
    # bursts of one microsecond start many step chains, and many copies of one block
    num_copies=64,
    num_chains=64,
    num_slots=64,
    log_capacity=4096,
    num_blocks=768,
    list_blocks=96,
    num_shared_blocks=96,
)
# Sizes of the shared-content table: few enough to compile, more than the workloads below need.
NODES = {"num_nodes": 24, "depth": 6, "node_blocks": 6}
GROUPS, GROUP_BLOCKS = 3, 6
PLENTY_BLOCKS = 700


class Static(NamedTuple):
    """What a compilation depends on; the cases below cover every policy at least twice."""

    num_instances: int
    routing: str
    scorers: str
    admission: str
    scheduler: str
    priority: str
    block_size: int = 16
    variant: str = "scheduling"
    has_cpu_tier: bool = False
    slo_preemption: bool = False
    is_precise: bool = False
    victim: str = "none"


ALL_SCORERS = "slo-priority:1,load-balance:2.5,prefix-affinity:3,kv-utilization:0.7,queue-depth:2"
STATICS = (
    Static(1, "round-robin", "", "always-admit", "fcfs", "constant"),
    Static(
        1, "least-loaded", "", "always-admit", "priority-fcfs", "slo-tiered", 4, slo_preemption=True
    ),
    Static(
        2,
        "weighted",
        "prefix-affinity:3,queue-depth:2",
        "token-bucket",
        "sjf",
        "constant",
        has_cpu_tier=True,
    ),
    Static(
        2, "always-busiest", "", "slo-gated", "reverse-priority", "slo-based", 4, has_cpu_tier=True
    ),
    Static(3, "weighted", "", "slo-gated", "priority-fcfs", "inverted-slo", slo_preemption=True),
    Static(3, "least-loaded", "", "token-bucket", "fcfs", "constant", 4),
    Static(
        4,
        "weighted",
        ALL_SCORERS,
        "always-admit",
        "priority-fcfs",
        "load-adaptive",
        has_cpu_tier=True,
        slo_preemption=True,
    ),
    Static(4, "prefix-affinity", "", "slo-gated", "sjf", "slo-based", 4, "routing"),
    Static(5, "round-robin", "", "slo-gated", "fcfs", "constant", 16, "routing", has_cpu_tier=True),
    Static(5, "weighted", "load-balance:1,slo-priority:3", "reject-all", "fcfs", "slo-based"),
    Static(
        2,
        "prefix-affinity",
        "",
        "always-admit",
        "reverse-priority",
        "load-adaptive",
        has_cpu_tier=True,
    ),
    Static(
        1,
        "weighted",
        "kv-utilization:1",
        "always-admit",
        "priority-fcfs",
        "slo-tiered",
        4,
        has_cpu_tier=True,
        slo_preemption=True,
    ),
)


@st.composite
def prompts(draw: Any, block_size: int, has_conversations: bool = False) -> list[Prompt]:
    """Bursts and gaps; prompts that share prefixes, or are nothing but a shared prefix.

    In a conversation a prompt begins with all tokens, outputs included, of an earlier request.
    """
    gaps = draw(st.sampled_from([(0,), (0, 0, 0, 1), (0, 1000), (500, 1000), (0, 1, 777, 20_000)]))
    longest = draw(st.sampled_from([1, 20, 100]))
    most_output = draw(st.sampled_from([1, 3, 40]))
    sharing = draw(st.sampled_from([0, 1, 1]))
    length = st.integers(1, longest)
    one = st.tuples(
        st.sampled_from(gaps),
        length,
        st.integers(0, most_output),
        st.integers(0, 5),
        st.integers(-1, GROUPS - 1),
        st.integers(0, GROUP_BLOCKS),
        st.sampled_from([0, 0, 1]),
        st.integers(-9, 9) if has_conversations else st.just(-1),
    )
    found: list[Prompt] = []
    now = 0
    size = draw(st.sampled_from([1, 2, 5, 12, 30, 60]))  # lists without a size stay short
    rows = draw(st.lists(one, min_size=size, max_size=size))
    for gap, own, output, slo_class, group, blocks, is_whole, continues in rows:
        now += gap
        prefix = sharing * blocks * block_size if group >= 0 else 0
        # A prompt that is all prefix is found entirely in the cache the second time.
        input_len = prefix if is_whole and prefix else prefix + own
        found.append(Prompt(now, input_len, output, slo_class, group, prefix, continues))
    return found


@st.composite
def settings(draw: Any, static: Static) -> dict[str, Any]:
    """Numbers of one cluster, with small budgets, thresholds and limits as likely as large ones."""

    def pick(*values: Any) -> Any:
        return draw(st.sampled_from(values))

    is_tight = pick(False, True, True)
    alpha = pick(
        (0.0, 0.0, 0.0), (1000.0, 0.0, 500.0), (250.0, 250.0, 0.0), (1601.35, 3.51, 1805.54)
    )
    beta = pick((1000.0, 0.0, 0.0), (1.0, 0.0, 0.0), (500.0, 31.25, 0.0), (6910.42, 17.67, 2.83))
    of_track = {"precise_kv_routing": True} if static.is_precise else {}
    return flags(
        num_instances=static.num_instances,
        routing_policy=static.routing,
        routing_scorers=static.scorers,
        admission_policy=static.admission,
        scheduler=static.scheduler,
        priority_policy=static.priority,
        block_size_in_tokens=static.block_size,
        alpha_coeffs=list(alpha),
        beta_coeffs=list(beta),
        admission_latency=pick(0, 0, 1, 1000),
        routing_latency=pick(0, 0, 1, 1000),
        snapshot_refresh_interval=pick(0, 0, 1000, 5000),
        horizon=pick(NO_HORIZON, NO_HORIZON, NO_HORIZON, 3000, 9999, 50_000),
        total_kv_blocks=pick(400, 120, 60, 40, 25, 7) if is_tight else PLENTY_BLOCKS,
        kv_cpu_blocks=pick(3, 10, 500) if static.has_cpu_tier else 0,
        kv_offload_threshold=pick(0.9, 0.5, 0.1, 0.0),
        kv_transfer_bandwidth=pick(100.0, 3.0),
        kv_transfer_base_latency=pick(0, 10, 1500),
        slo_preemption=static.slo_preemption,
        victim_policy=static.victim,
        least_worth_critical=pick(0.0, 2.0),
        least_worth_standard=pick(0.0, 1.0),
        least_worth_per_token=pick(0.0, 0.0, 0.03125),
        least_worth_per_block=pick(0.0, 0.0, 0.5),
        long_prefill_token_threshold=pick(0, 0, 1, 7, 16, 40),
        max_num_running_reqs=pick(256, 256, 1, 2, 7),
        max_num_scheduled_tokens=pick(2048, 2048, 1, 3, 16, 50),
        slo_prefill=pick(False, False, True),
        slo_prefill_critical=pick(5, 32, 0),
        slo_prefill_sheddable=pick(0, 9),
        slo_gated_threshold=pick(0.0, 1.5, 8.0),
        token_bucket_capacity=pick(10000.0, 150.0),
        token_bucket_refill_rate=pick(1000.0, 12345.6),
        slo_base_critical=pick(10.0, 1.0, -2.5),
        slo_base_standard=pick(5.0, 1.0),
        slo_age_weight=pick(1e-5, 0.0, 0.37),
        slo_threshold_standard=pick(100_000, 0, 1500),
        slo_threshold_sheddable=pick(200_000, 0, 3000),
        slo_scorer_bias_critical=pick(0.9, 1.0, 0.5),
        slo_scorer_bias_sheddable=pick(0.2, 0.0),
        load_adaptive_low=pick(2, 0, 5),
        load_adaptive_high=pick(15, 3),
        **of_track,
    )


class Scene(NamedTuple):
    """One run to make."""

    workload: dict[str, np.ndarray]
    flags: dict[str, Any]
    static: Static

    def __repr__(self) -> str:
        changed = {k: v for k, v in self.flags.items() if flags().get(k) != v}
        columns = ("arrival_us", "input_len", "output_len", "slo_class", "block_ids_delta")
        rows = {name: self.workload[name].tolist() for name in columns}
        return f"Scene({self.static}, {changed}, {rows})"


def scenes(statics: tuple[Static, ...], has_conversations: bool = False) -> Any:
    """A workload and a cluster."""

    @st.composite
    def one(draw: Any) -> Scene:
        static = draw(st.sampled_from(statics))
        rows = draw(prompts(static.block_size, has_conversations))
        workload = workload_of(rows, static.block_size)
        return Scene(workload, draw(settings(static)), static)

    return one()


def run(scene: Scene, options: Options = OPTIONS, nodes: dict[str, int] = NODES) -> RunRecord:
    cluster = from_flags({**scene.flags, "variant": scene.static.variant})
    return simulate(cluster, table_of(scene.workload, **nodes), options)


def check(scene: Scene, nodes: dict[str, int] = NODES) -> None:
    """Equal to the oracle in everything, also in how the reference fails."""
    record = run(scene, nodes=nodes)
    if record.outcome == Outcome.ITERATIONS_EXHAUSTED:  # millions of steps that come to nothing
        return check(begun(scene), nodes)
    expected = oracle.simulate(scene.workload, scene.flags, profile=scene.static.variant)
    if record.outcome not in WHOLE:
        assert FAILURES[record.outcome] == expected.outcome.partition(":")[0]
        return
    assert expected.outcome == oracle.FINISHED
    assert not differences(record, expected, scene.static.block_size)
    check_matches(record, expected, scene.static.block_size)
    check_conservation(record)


def check_matches(record: RunRecord, expected: Any, block_size: int) -> None:
    """What the router's index promised every request on its instance."""
    instance, matched = record.requests.instance, expected.requests["route_match_blocks"]
    at = np.flatnonzero((instance >= 0) & (matched[:, 0] >= 0))
    promised = record.requests.expected_cached_tokens[at]
    np.testing.assert_array_equal(promised, matched[at, instance[at]] * block_size)


def begun(scene: Scene) -> Scene:
    """The first sixteenth of a run that has a horizon."""
    return scene._replace(flags={**scene.flags, "horizon": scene.flags["horizon"] // 16})


FAILURES = {Outcome.REFERENCE_CRASH: "crash", Outcome.LIVELOCK: "livelock"}


def check_conservation(record: RunRecord) -> None:
    """What the oracle does not need to tell: nobody is lost, time goes forward, blocks come back."""
    requests, instances = record.requests, record.instances
    counts = np.bincount(requests.status, minlength=6)
    assert counts.sum() == len(requests.status)
    assert counts[Status.COMPLETED] == instances.completed_requests.sum()
    assert counts[Status.DROPPED] == instances.dropped_unservable.sum()
    assert counts[Status.WAITING] == instances.still_queued.sum()
    assert counts[Status.RUNNING] == instances.still_running.sum()
    assert np.all((requests.instance >= 0) | (requests.status >= Status.REJECTED))
    is_done = requests.status == Status.COMPLETED
    assert np.all(requests.sched_delay_us[is_done] >= 0)
    assert np.all(requests.e2e_us[is_done] >= requests.ttft_us[is_done])
    assert record.invariant_failures["monotone_clock"] == 0
    assert np.all(record.steps.used_blocks <= instances.total_kv_blocks[record.steps.instance])
    if instances.preemption_count.any() or instances.kv_allocation_failures.any():
        return
    assert np.all(requests.ttft_us[is_done] >= requests.sched_delay_us[is_done])
    if record.outcome == Outcome.COMPLETED:
        assert not instances.used_blocks_at_end.any()


# The caches feed the router's index; with a CPU tier, which the last one has, nothing does.
PRECISE = (
    Static(2, "weighted", "prefix-affinity:4,queue-depth:3", "always-admit", "fcfs", "constant"),
    Static(
        3,
        "weighted",
        "prefix-affinity:3,queue-depth:1",
        "slo-gated",
        "priority-fcfs",
        "slo-class",
        4,
    ),
    Static(
        2, "weighted", "prefix-affinity:1", "always-admit", "sjf", "slo-based", has_cpu_tier=True
    ),
)
PRECISE = tuple(each._replace(variant="routing", is_precise=True) for each in PRECISE)

VICTIMS = (
    Static(1, "round-robin", "", "always-admit", "fcfs", "constant", 4, victim="least-worth"),
    Static(
        2, "least-loaded", "", "always-admit", "priority-fcfs", "slo-tiered",
        has_cpu_tier=True, victim="least-worth",
    ),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(3000)
@hypothesis.settings(max_examples=200, phases=PHASES)
@hypothesis.given(scenes(VICTIMS))
def test_a_policy_of_victims_equals_oracle(scene: Scene):
    """With no worth at all, which is drawn too, the victim is the last of the batch, as without the policy."""
    check(scene)


FAST = (STATICS[0], STATICS[3], STATICS[7], STATICS[11])


@hypothesis.settings(max_examples=20, phases=PHASES)
@hypothesis.given(scenes(FAST[:2]))
def test_equals_oracle(scene: Scene):
    check(scene)


@pytest.mark.slow
@hypothesis.settings(max_examples=100, phases=PHASES)
@hypothesis.given(scenes(FAST))
def test_other_mechanisms_equal_oracle(scene: Scene):
    check(scene)


# One test for each way to compile: a part of them at a time is what a machine has the time for.
each_static = pytest.mark.parametrize("place", range(len(STATICS)))


@pytest.mark.slow
@pytest.mark.timeout(3000)
@each_static
@hypothesis.settings(max_examples=167, phases=PHASES)
@hypothesis.given(st.data())
def test_equals_oracle_often(place: int, data: Any):
    check(data.draw(scenes((STATICS[place],))))


LAST_US = 2**31 - 1  # of a 32-bit clock, where it stands for never


@st.composite
def late_scenes(draw: Any, statics: tuple[Static, ...]) -> Scene:
    """A scene of which some time, latency or coefficient ends within 0.2 s of the 32-bit clock's last time."""
    scene = draw(scenes(statics))
    late = LAST_US - draw(st.one_of(st.integers(0, 3), st.integers(0, 200_000)))
    arrival, changed = scene.workload["arrival_us"], dict(scene.flags)
    which = draw(
        st.sampled_from(("all", "all", "last", "horizon", "admission", "routing", "alpha", "beta"))
    )
    if which in ("all", "horizon"):
        shift = late - int(arrival.max())
        arrival = arrival + shift
        if changed["horizon"] < NO_HORIZON:
            changed["horizon"] += shift
    if which == "last":
        arrival = np.where(np.arange(len(arrival)) == len(arrival) - 1, late, arrival)
    if which == "horizon":
        changed["horizon"] = LAST_US + draw(st.integers(-100_000, 100_000))
    if which in ("admission", "routing"):
        changed[f"{which}-latency"] = min(late - int(arrival.max()), LAST_US - 1)
    if which in ("alpha", "beta"):
        name, parts = f"{which}-coeffs", draw(st.sampled_from((1, 1, 2, 3, 17)))
        place = draw(st.integers(0, 1 if which == "beta" else 2))
        changed[name] = [
            float(late // parts) if i == place else x for i, x in enumerate(changed[name])
        ]
    return Scene({**scene.workload, "arrival_us": arrival}, changed, scene.static)


@pytest.mark.slow
@hypothesis.settings(max_examples=30, phases=PHASES)
@hypothesis.given(late_scenes(FAST[:1]))
def test_times_at_the_end_of_the_32_bit_clock_equal_oracle(scene: Scene):
    check(scene)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@each_static
@hypothesis.settings(max_examples=84, phases=PHASES)
@hypothesis.given(st.data())
def test_times_at_the_end_of_the_32_bit_clock_equal_oracle_often(place: int, data: Any):
    check(data.draw(late_scenes((STATICS[place],))))


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("static", PRECISE)
@hypothesis.settings(max_examples=300 // len(PRECISE), phases=PHASES)
@hypothesis.given(st.data())
def test_precise_routing_equals_oracle(static: Static, data: Any):
    check(data.draw(scenes((static,))))


# More shared contents, on longer paths: one table size for all conversations.
LONG_NODES = {"num_nodes": 128, "depth": 12, "node_blocks": 12}
TALKATIVE = (STATICS[0], STATICS[2], STATICS[11])


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("static", TALKATIVE)
@hypothesis.settings(max_examples=100, phases=PHASES)
@hypothesis.given(st.data())
def test_conversations_equal_oracle(static: Static, data: Any):
    check(data.draw(scenes((static,), has_conversations=True)), LONG_NODES)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("static", PRECISE[:2])
@hypothesis.settings(max_examples=75, phases=PHASES)
@hypothesis.given(st.data())
def test_conversations_routed_precisely_equal_oracle(static: Static, data: Any):
    check(data.draw(scenes((static,), has_conversations=True)), LONG_NODES)


@pytest.fixture(params=[7, 15])
def small_router_index(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    """The router's index with room for few blocks, in the engine and in the oracle."""
    for module in (router_index, demand, oracle, precise_index):
        monkeypatch.setattr(module, "ROUTER_INDEX_CAPACITY", request.param)
    compiled.cache_clear()
    yield
    compiled.cache_clear()


# The fast form of the properties around it: one mechanism of each kind, few scenes.
FEW = {
    "victims": (scenes(VICTIMS[:1]), NODES),
    "precise routing": (scenes(PRECISE[:1]), NODES),
    "conversations": (scenes(TALKATIVE[:1], has_conversations=True), LONG_NODES),
    "end of the clock": (late_scenes(FAST[:1]), NODES),
}


@pytest.mark.parametrize("kind", FEW)
@hypothesis.settings(max_examples=5, phases=PHASES)
@hypothesis.given(st.data())
def test_a_few_scenes_of_each_kind_equal_oracle(kind: str, data: Any):
    kind_scenes, nodes = FEW[kind]
    check(data.draw(kind_scenes), nodes)


INDEXED = (STATICS[2], STATICS[4], STATICS[6])


@pytest.mark.slow
@pytest.mark.usefixtures("small_router_index")
@hypothesis.settings(
    max_examples=150,
    phases=PHASES,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
@hypothesis.given(scenes((*INDEXED, *PRECISE[:2])))
def test_full_router_index_equals_oracle(scene: Scene):
    check(scene)


@pytest.mark.slow
@hypothesis.settings(max_examples=6, phases=PHASES)
@hypothesis.given(scenes(FAST[:1]))
def test_same_input_same_bits_and_more_slots_change_nothing(scene: Scene):
    first, again = run(scene), run(scene)
    larger = run(scene, Options(num_slots=96, log_capacity=8192))
    for other in (again, larger):
        assert first.outcome == other.outcome
        for part in ("requests", "steps", "instances"):
            for field in dataclasses.fields(getattr(first, part)):
                mine, theirs = (getattr(getattr(each, part), field.name) for each in (first, other))
                np.testing.assert_array_equal(mine, theirs, err_msg=field.name)


def check_memory_models(scene: Scene) -> None:
    """Memory without limit gives the results of memory without eviction."""
    cheap = run(scene, dataclasses.replace(OPTIONS, kv_model="no-eviction"))
    hypothesis.assume(cheap.outcome in WHOLE)
    full = run(scene, dataclasses.replace(OPTIONS, kv_model="block-level"))
    assert (cheap.kv_model, full.kv_model) == (NO_EVICTION, BLOCK_LEVEL)
    assert cheap.outcome == full.outcome
    size = scene.static.block_size
    for name, steps in expand_steps(cheap, size)._asdict().items():
        np.testing.assert_array_equal(steps, getattr(expand_steps(full, size), name), name)
    for part in ("requests", "instances"):
        for field in dataclasses.fields(getattr(cheap, part)):
            mine, theirs = (getattr(getattr(each, part), field.name) for each in (cheap, full))
            np.testing.assert_array_equal(mine, theirs, err_msg=field.name)


@hypothesis.settings(max_examples=5, phases=PHASES)
@hypothesis.given(scenes(FAST[:1]))
def test_both_memory_models_are_equal_in_a_few_scenes(scene: Scene):
    check_memory_models(scene)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@hypothesis.settings(max_examples=150, phases=PHASES)
@hypothesis.given(scenes((STATICS[0], STATICS[3], STATICS[6], STATICS[11])))
def test_both_memory_models_are_equal_where_both_apply(scene: Scene):
    check_memory_models(scene)


# Scenes that the generators above seldom meet.
HAND_MADE = {
    # A member passed over by the budget goes on without a stored token; what it fills later matches nothing.
    "lagging member of a conversation": (
        [
            Prompt(0, 4, 1, group=0, prefix_len=4),
            Prompt(40_000, 4, 6, group=0, prefix_len=4),
            Prompt(40_000, 5, 19, group=0, prefix_len=4),
            Prompt(90_000, 0, 3, continues=2),
        ],
        {"block_size_in_tokens": 4, "max_num_scheduled_tokens": 1},
    ),
    # Once passed over, a member takes its blocks later than its prompt's length tells; no step of it may be skipped.
    "lagging member that decodes alone": (
        [
            Prompt(0, 4, 1, group=0, prefix_len=4),
            Prompt(39_500, 3, 1),  # both of the next wait for it, and start in one step
            Prompt(40_000, 4, 3, group=0, prefix_len=4),
            Prompt(40_001, 5, 20, group=0, prefix_len=4),
        ],
        {"block_size_in_tokens": 4, "max_num_scheduled_tokens": 1},
    ),
    # A block that one output token fills at once is not registered, only one that was partly filled.
    "conversation in blocks of one token": (
        [Prompt(0, 3, 4), Prompt(50_000, 0, 2, continues=0)],
        {"block_size_in_tokens": 1},
    ),
    # Whether a dropped request starts a step depends on the steps of its microsecond that come before it.
    "dropped among requests queued in one microsecond": (
        [Prompt(0, 29 if place == 10 else 1, 0) for place in range(12)],
        {
            "alpha_coeffs": [1000.0, 0.0, 500.0],
            "block_size_in_tokens": 4,
            "max_num_scheduled_tokens": 1,
            "total_kv_blocks": 7,
        },
    ),
    "conversation in blocks of two tokens": (
        [Prompt(0, 3, 4), Prompt(50_000, 0, 2, continues=0)],
        {"block_size_in_tokens": 2},
    ),
    "arrival beyond 32 bits": ([Prompt(2**31 + 5, 3, 2)], {}),
    "arrival just within 32 bits": ([Prompt(2**31 - 5, 3, 2)], {}),
    "admission beyond 32 bits": ([Prompt(2 * 10**9, 3, 2)], {"admission_latency": 2 * 10**9}),
    "routing beyond 32 bits": ([Prompt(2 * 10**9, 3, 2)], {"routing_latency": 2 * 10**9}),
    "queueing beyond 32 bits": ([Prompt(10, 3, 2)], {"alpha_coeffs": [3e9, 0.0, 0.0]}),
    "steps beyond 32 bits": ([Prompt(10, 3, 200)], {"beta_coeffs": [1e8, 0.0, 0.0]}),
    "steps without duration": ([Prompt(0, 3, 4), Prompt(5, 3, 2)], {"beta_coeffs": [0.0] * 3}),
}


@pytest.mark.parametrize("name", HAND_MADE)
def test_hand_made_scene(name: str):
    rows, changes = HAND_MADE[name]
    numbers = flags(**changes)
    size = numbers["block-size-in-tokens"]
    scene = Scene(workload_of(rows, size), numbers, STATICS[0]._replace(block_size=size))
    record = run(scene, nodes={})
    assert record.outcome == Outcome.COMPLETED
    check(scene, {})

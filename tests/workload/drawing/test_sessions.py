"""Multi-turn draws against their definition: tokens spelt out, constant laws counted by hand."""

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blis_jax.cluster.config import ClusterConfig
from blis_jax.core.outcome import Outcome
from blis_jax.errors import ConfigError
from blis_jax.runs.many_runs import simulate
from blis_jax.workload.distribution import CAP_PER_REQUEST, prefix_lengths
from blis_jax.workload.drawing.draw import compile_plan, draw, longest_node, params_for
from blis_jax.workload.drawing.plan import expected_output, longest_request, prefix_blocks
from blis_jax.workload.spec import load_builtin, load_spec, override, parse_spec
from blis_jax.workload.table import NEVER_US, NO_SESSION, RequestTable, from_golden, load_table
from tests.support.rotation import rotating
from tests.workload.drawing.test_draw import counted_draw
from tests.workload.test_table import check_structure, golden_arrays

RECORDED = ["mt_small", "mt_lru", "mt_long", "mt_none", "multiturn", "multiturn_heavy"]
draw_once = jax.jit(draw, static_argnums=0)


@pytest.fixture(autouse=True)
def wide_numbers():
    with jax.enable_x64(True):
        yield


def drawn(spec, seed=0, **options):
    """A table on the host, and whether it was short."""
    plan = compile_plan(spec, **options)
    table, is_short = draw_once(plan.shape, plan.params, jax.random.key(seed))
    assert table.num_nodes == plan.shape.num_nodes
    assert table.depth == plan.shape.path_depth
    return jax.tree.map(np.asarray, table), bool(is_short)


def scene(*clients, rate=1000.0, num_requests=60, horizon=0):
    head = f'version: "2"\naggregate_rate: {rate}\nnum_requests: {num_requests}\n'
    rows = "".join(f"  - {{{client}}}\n" for client in clients)
    return parse_spec(f"{head}horizon: {horizon}\nclients:\n{rows}")


def law(size):
    """A constant length, or a gaussian one for (mean, std_dev)."""
    if isinstance(size, tuple):
        mean, deviation = size
        params = f"{{mean: {mean}, std_dev: {deviation}, min: 1, max: 1000}}"
        return f"{{type: gaussian, params: {params}}}"
    return f"{{type: constant, params: {{value: {size}}}}}"


def client_text(sizes=(40, 24), fraction=1.0, process="poisson", more=""):
    return (
        f"rate_fraction: {fraction}, arrival: {{process: {process}}}, "
        f"input_distribution: {law(sizes[0])}, output_distribution: {law(sizes[1])}{more}"
    )


def turns(rounds, think_time_us=1000, growth="accumulate"):
    inner = f"max_rounds: {rounds}, think_time_us: {think_time_us}, context_growth: '{growth}'"
    return f", reasoning: {{multi_turn: {{{inner}}}}}"


def group_text(name, length):
    return f", prefix_group: {name}, prefix_length: {length}"


SHORT = ((9, 6), (5, 4))  # input and output of a few tokens: many rounds fill no block
ODD_GROUPS = [
    client_text(((60, 40), 9), more=group_text("a", 333)),
    client_text(((60, 40), 9), more=group_text("b", 101)),
    client_text(((4, 4), 9), more=group_text("b", 64)),
    client_text(((60, 40), 9), more=group_text("c", 7)),
    client_text(),
]
SCENES = {
    "short rounds": scene(client_text(SHORT, more=turns(9, 300)), num_requests=150),
    "one token at a time": scene(client_text((1, 1), more=turns(40, 0)), num_requests=100),
    "with prefix groups": scene(
        *ODD_GROUPS,
        client_text(SHORT, more=turns(6)),
        client_text(more=turns(3, growth="")),
        client_text(((50, 30), (30, 30)), more=turns(4, 0) + group_text("a", 48)),
        num_requests=300,
    ),
    "more rounds than requests": scene(client_text(SHORT, more=turns(200)), num_requests=20),
    "single rounds": scene(client_text(more=turns(1)), client_text(SHORT)),
    "to a horizon": scene(
        client_text(SHORT, process="gamma, cv: 2", more=turns(3, 100_000)),
        client_text(process="weibull, cv: 0.5", more=group_text("a", 50)),
        num_requests=0,
        horizon=60_000,
    ),
}


def spelt_out(table, spec, block_size):
    """The same requests from tokens: a new number for each new token, then the golden format."""
    fresh = itertools.count()
    prefixes = [
        list(itertools.islice(fresh, size)) for size in prefix_lengths(spec.clients).values()
    ]
    names = list(prefix_lengths(spec.clients))
    texts, requests = {}, []
    for row in np.flatnonzero(table.arrival_us != NEVER_US):
        client, session = spec.clients[table.client[row]], int(table.session[row])
        before = []
        if client.multi_turn and client.multi_turn.context_growth:
            before = texts.get(session, [])
        elif client.prefix_group and not client.multi_turn:
            before = prefixes[names.index(client.prefix_group)]
        num_new = int(table.input_len[row]) - len(before)
        assert num_new >= 1
        prompt = before + list(itertools.islice(fresh, num_new))
        output = list(itertools.islice(fresh, int(table.output_len[row])))
        texts[session] = prompt + output
        requests.append((prompt, output))
    return from_golden(golden_arrays(requests, np.arange(len(requests)), block_size))


def spans(table, row):
    """Start and length of the nodes on a path."""
    path = table.path_nodes[row][table.path_nodes[row] >= 0]
    return list(zip(table.node_start[path].tolist(), table.node_blocks[path].tolist(), strict=True))


def shared_contents(table):
    """Rows that hold each block of a node, as a set of sets; lone holders share nothing."""
    holders = {}
    for row, path in enumerate(table.path_nodes):
        for node in path[path >= 0]:
            for block in range(table.node_blocks[node]):
                holders.setdefault((node, block), []).append(row)
    position = lambda node, block: int(table.node_start[node]) + block  # noqa: E731
    return sorted((position(*key), rows) for key, rows in holders.items() if len(rows) > 1)


def check_contents(table, spec, block_size):
    expected = spelt_out(table, spec, block_size)
    num = expected.num_rows
    assert shared_contents(table) == shared_contents(expected)
    for row in np.flatnonzero(table.session[:num] >= 0):
        assert spans(table, row) == spans(expected, row)
    assert np.array_equal(table.prompt_key[:num], expected.prompt_key)
    assert np.all(table.path_nodes[num:] < 0)
    check_structure(table, block_size)


def check_rounds(table, spec):
    """Arrival recurrence, growing prompts, numbering by first appearance, whole beginnings."""
    seen = {}
    for row in np.flatnonzero(table.arrival_us != NEVER_US):
        turn, client = spec.clients[table.client[row]].multi_turn, int(table.client[row])
        if turn is None:
            assert (table.session[row], table.round_index[row]) == (NO_SESSION, 0)
            continue
        session, round_index = int(table.session[row]), int(table.round_index[row])
        if round_index == 0:
            assert session == len(seen)
        else:
            previous = seen[session]
            assert table.client[previous] == client
            assert table.round_index[previous] == round_index - 1
            gap_us = turn.think_time_us + table.output_len[previous]
            assert table.arrival_us[row] == table.arrival_us[previous] + gap_us
            if turn.context_growth:
                before = table.input_len[previous] + table.output_len[previous]
                assert table.input_len[row] > before
        assert round_index < turn.max_rounds
        seen[session] = row
    assert len(set(table.session[table.session >= 0])) == len(seen)


@pytest.mark.golden
@pytest.mark.parametrize("name", rotating(RECORDED, always=["mt_small", "multiturn_heavy"]))
def test_recorded_specifications_draw_whole_sessions(golden_dir, name):
    spec = load_spec(golden_dir / "scheduling" / "specs" / f"{name}.yaml")
    for seed in range(3):
        table, is_short = drawn(spec, seed)
        assert not is_short
        check_rounds(table, spec)
        check_contents(table, spec, 16)


@pytest.mark.parametrize(
    ("name", "block_size"),
    rotating(
        [*((name, 4) for name in SCENES), ("with prefix groups", 16), ("one token at a time", 1)],
        always=[("with prefix groups", 4), ("to a horizon", 4), ("one token at a time", 1)],
    ),
)
def test_sessions_share_what_their_tokens_share(name, block_size):
    spec = SCENES[name]
    for seed in range(3):
        table, is_short = drawn(spec, seed, block_size=block_size)
        assert not is_short
        check_rounds(table, spec)
        check_contents(table, spec, block_size)


@pytest.mark.slow
@pytest.mark.parametrize(
    "policy",
    [
        {"routing_policy": "weighted", "routing_scorers": "prefix-affinity:3,queue-depth:2"},
        {"routing_policy": "prefix-affinity"},
    ],
)
@pytest.mark.parametrize("name", ["short rounds", "with prefix groups"])
def test_drawn_and_spelt_out_contents_run_alike(name, policy):
    table, _ = drawn(SCENES[name], block_size=4)
    expected = spelt_out(table, SCENES[name], 4)
    kept = ("arrival_us", "slo_class", "tenant", "client", "session", "round_index", "tie_rank")
    expected = dataclasses.replace(expected, **{field: getattr(table, field) for field in kept})
    cluster = ClusterConfig(
        num_instances=3, block_size_in_tokens=4, long_prefill_token_threshold=32, **policy
    )
    one, other = simulate(cluster, table), simulate(cluster, expected)
    assert one.outcome == other.outcome == Outcome.COMPLETED
    assert np.sum(one.requests.cached_tokens_first_sched) > 0
    for part in ("requests", "instances"):
        mine, theirs = getattr(one, part), getattr(other, part)
        for field in dataclasses.fields(mine):
            assert np.array_equal(getattr(mine, field.name), getattr(theirs, field.name)), field


def test_the_scenes_hold_what_they_are_meant_to_hold():
    """Rounds within one block, equal last prompt blocks, and sessions that the cut leaves open."""
    table, _ = drawn(SCENES["short rounds"])
    lengths = [len(path[path >= 0]) for path in table.path_nodes]
    assert 0 < max(lengths) < table.depth
    assert len(set(table.prompt_key)) < table.num_rows
    assert len(set(np.bincount(table.session))) > 1
    mixed, _ = drawn(SCENES["with prefix groups"])
    assert mixed.node_blocks[:3].tolist() == [20, 6, 0]
    assert len(set(mixed.prompt_key)) < mixed.num_rows
    lone = (mixed.session >= 0) & (mixed.path_nodes[:, 0] < 0)
    assert np.any(lone)
    assert not np.all(lone[mixed.session >= 0])


def test_without_accumulation_rounds_share_nothing():
    with_growth, _ = drawn(scene(client_text(more=turns(4))))
    without, _ = drawn(scene(client_text(more=turns(4, growth=""))))
    for field in ("arrival_us", "output_len", "session", "round_index", "tie_rank"):
        assert np.array_equal(getattr(with_growth, field), getattr(without, field)), field
    assert np.all(without.input_len == 40)
    assert np.all(without.path_nodes == -1)
    assert without.node_blocks.tolist() == [0]
    assert np.array_equal(with_growth.input_len, 40 + 64 * with_growth.round_index)
    assert np.any(with_growth.path_nodes >= 0)


def test_sessions_have_no_prefix_and_no_silence():
    silent = ", lifecycle: {windows: [{start_us: 5, end_us: 6}]}"
    plain, _ = drawn(scene(client_text(more=turns(3))))
    ignored, _ = drawn(scene(client_text(more=turns(3) + silent + group_text("g", 64))))
    for field in ("arrival_us", "input_len", "session", "prompt_key"):
        assert np.array_equal(getattr(plain, field), getattr(ignored, field)), field


def counted(spec):
    """Rows (arrival, client, session of the client, round, input, output) of constant laws."""
    total, wanted = sum(client.rate_fraction for client in spec.clients), spec.num_requests
    requests = []
    for index, client in enumerate(spec.clients):
        gap_us = int(1.0 / (spec.aggregate_rate * (client.rate_fraction / total) / 1e6))
        new, output = (
            part.params.value for part in (client.input_distribution, client.output_distribution)
        )
        turn = client.multi_turn
        rounds, think_us = (turn.max_rounds, turn.think_time_us) if turn else (1, 0)
        num_made, at_us, begun = 0, gap_us, 0
        while (not wanted or num_made < CAP_PER_REQUEST * wanted) and (
            not spec.horizon or at_us < spec.horizon
        ):
            for round_index in range(rounds):
                context = round_index * (new + output) if turn and turn.context_growth else 0
                start_us = at_us + round_index * (think_us + output)
                session = begun if turn else -1
                requests.append((start_us, index, session, round_index, context + new, output))
            num_made, at_us, begun = num_made + rounds, at_us + gap_us, begun + 1
    requests.sort(key=lambda request: request[0])
    return requests[:wanted] if wanted else requests


CONSTANT = {
    "one client": scene(client_text(process="constant", more=turns(4, 5000))),
    "sessions end before the requests do": scene(
        client_text(process="constant", more=turns(8, 10_000_000)), num_requests=200
    ),
    "limited and unlimited clients": scene(
        client_text(process="constant", more=turns(20, 2_000_000)),
        client_text((7, 3), 0.01, process="constant"),
        num_requests=100,
    ),
    "rounds not a divisor of the limit": scene(
        client_text(process="constant", more=turns(7, 1_000_000)), num_requests=50
    ),
    "ties": scene(
        client_text((5, 1000), process="constant", more=turns(5, 0)),
        client_text((6, 1000), process="constant", more=turns(5, 1000)),
        client_text((7, 1000), process="constant"),
        rate=3000.0,
        num_requests=100,
    ),
    "rounds beyond the horizon": scene(
        client_text(process="constant", more=turns(3, 500_000)),
        client_text((7, 3), 0.5, process="constant"),
        num_requests=0,
        horizon=20_000,
    ),
    "a horizon and too few requests": scene(
        client_text(process="constant", more=turns(3, 500_000)), num_requests=90, horizon=20_000
    ),
    "a horizon and enough requests": scene(
        client_text(process="constant", more=turns(3, 5_000)), num_requests=40, horizon=20_000
    ),
}


@pytest.mark.parametrize("name", CONSTANT)
def test_constant_sessions_are_the_counted_ones(name):
    spec = CONSTANT[name]
    table, is_short = drawn(spec)
    assert not is_short
    expected = counted(spec)
    num = int(np.sum(table.arrival_us != NEVER_US))
    columns = zip(*expected, strict=True)
    arrival_us, client, _, round_index, input_len, output_len = map(list, columns)
    assert table.arrival_us[:num].tolist() == arrival_us
    assert table.client[:num].tolist() == client
    assert table.round_index[:num].tolist() == round_index
    assert table.input_len[:num].tolist() == input_len
    assert table.output_len[:num].tolist() == output_len
    numbers = {}
    for row, (_, who, session, *_rest) in enumerate(expected):
        wanted = -1 if session < 0 else numbers.setdefault((who, session), len(numbers))
        assert table.session[row] == wanted
    check_contents(table, spec, 16)


@pytest.mark.golden
@pytest.mark.statistical
@pytest.mark.parametrize("name", rotating(RECORDED, always=["mt_lru", "multiturn"]))
def test_draws_agree_with_the_recorded_workloads(golden_dir, name):
    """300 seeds; a recorded table is one more: 5 standard deviations, false alarms below 1e-4 in all.

    Means of lengths are those of the laws within 5 standard errors and a rounding of 0.6 tokens.
    """
    spec = load_spec(golden_dir / "scheduling" / "specs" / f"{name}.yaml")
    plan = compile_plan(spec)
    keys = jax.random.split(jax.random.key(17), 300)
    tables, is_short = jax.jit(jax.vmap(lambda key: draw(plan.shape, plan.params, key)))(keys)
    assert not np.any(is_short)
    tables = jax.tree.map(np.asarray, tables)
    files = sorted((golden_dir / "scheduling" / "workloads").glob(f"{name}_s*.npz"))
    assert files
    figures = statistics(tables)
    for file in files:
        one = statistics(jax.tree.map(lambda leaf: np.asarray(leaf)[None], load_table(file)[0]))
        for what, (value,) in one.items():
            spread = figures[what].std() + 1e-9
            assert abs(value - figures[what].mean()) < 5 * spread, (file.name, what)
    output = np.asarray(tables.output_len).ravel()
    mean = spec.clients[0].output_distribution.params.mean
    assert abs(output.mean() - mean) < 5 * mean / math.sqrt(output.size) + 0.6
    new = np.asarray(tables.input_len)[np.asarray(tables.round_index) == 0]
    params = spec.clients[0].input_distribution.params
    assert abs(new.mean() - params.mean) < 5 * params.std_dev / math.sqrt(new.size) + 0.6


def statistics(tables):
    """Figures of each table of a batch."""
    is_first = tables.round_index == 0
    last_round = tables.round_index.max(axis=1)
    figures = {
        "last arrival": tables.arrival_us[:, -1] / 1e6,
        "sessions": tables.session.max(axis=1) + 1.0,
        "mean prompt": tables.input_len.mean(axis=1),
        "mean output": tables.output_len.mean(axis=1),
        "requests per session": is_first.shape[1] / is_first.sum(axis=1),
        "last round": last_round.astype(float),
    }
    for client in range(3):
        figures[f"requests of client {client}"] = (tables.client == client).mean(axis=1)
    return figures


@pytest.mark.statistical
@pytest.mark.parametrize("name", ["multiturn", "multiturn_heavy"])
def test_session_draws_are_rarely_short(name):
    """1,000 seeds, none short; a plan short once in 70 seeds would pass with probability 1e-6."""
    plan = compile_plan(load_builtin(name))
    keys = jax.random.split(jax.random.key(11), 1000)
    one = lambda key: draw(plan.shape, plan.params, key)[1]  # noqa: E731
    assert not np.any(jax.jit(lambda keys: jax.lax.map(one, keys))(keys))


@pytest.mark.slow
def test_too_few_draws_are_flagged_and_more_keep_the_bits():
    spec = load_builtin("multiturn_heavy")
    plan = compile_plan(spec)
    table, is_short = drawn(spec)
    wider, _ = drawn(spec, headroom=2.0)
    assert not is_short
    assert all(map(np.array_equal, jax.tree.leaves(table), jax.tree.leaves(wider)))
    few = [dataclasses.replace(client, num_proposals=8) for client in plan.shape.clients]
    starved = dataclasses.replace(plan.shape, clients=tuple(few))
    assert bool(draw_once(starved, plan.params, jax.random.key(0))[1])


def test_rounds_too_late_to_be_represented_are_flagged():
    plan = compile_plan(SCENES["short rounds"])
    first = dataclasses.replace(
        plan.params.clients[0], think_time_us=np.int64(plan.shape.latest_arrival_us)
    )
    params = dataclasses.replace(plan.params, clients=(first,))
    assert bool(draw_once(plan.shape, params, jax.random.key(0))[1])


@pytest.mark.slow
def test_mapping_over_seeds_changes_no_bit():
    grouped = client_text(more=group_text("g", 70))
    plan = compile_plan(scene(client_text(SHORT, more=turns(5)), grouped))
    keys = jax.random.split(jax.random.key(0), 4)
    tables, _ = jax.jit(jax.vmap(lambda key: draw(plan.shape, plan.params, key)))(keys)
    for row, key in enumerate(keys):
        alone, _ = draw_once(plan.shape, plan.params, key)
        picked = jax.tree.map(lambda leaf, row=row: leaf[row], tables)
        assert all(map(np.array_equal, jax.tree.leaves(picked), jax.tree.leaves(alone)))


def test_columns_have_their_dtypes():
    plan = compile_plan(SCENES["with prefix groups"])
    table, _ = draw_once(plan.shape, plan.params, jax.random.key(0))
    for field in RequestTable.__dataclass_fields__:
        column = getattr(table, field)
        assert column.dtype == (jnp.int64 if field == "arrival_us" else jnp.int32), field
        assert not column.weak_type, field


def test_other_numbers_do_not_compile_again():
    compiled, traces = counted_draw()
    plan = compile_plan(scene(client_text(more=turns(3)), num_requests=40))
    variants = [
        scene(client_text(more=turns(3)), num_requests=40),
        scene(client_text((80, 5), more=turns(3, 9_000)), num_requests=40),
        scene(client_text(more=turns(3, 0)), num_requests=40, rate=10.0),
    ]
    for variant in variants:
        params = params_for(plan.shape, variant)
        table, is_short = compiled(plan.shape, params, jax.random.key(1))
        assert not is_short
        check_rounds(jax.tree.map(np.asarray, table), variant)
        check_contents(jax.tree.map(np.asarray, table), variant, 16)
    assert len(traces) == 1


def test_a_client_of_sessions_leaves_the_others_alone():
    plain = client_text(process="gamma, cv: 2")
    single, _ = drawn(scene(client_text(), plain))
    sessions, _ = drawn(scene(client_text(more=turns(3)), plain))
    mine, theirs = (t.arrival_us[t.client == 1] for t in (single, sessions))
    shared = min(len(mine), len(theirs))
    assert shared > 10
    assert np.array_equal(mine[:shared], theirs[:shared])


def test_reasoning_without_rounds_is_single_turn():
    ratio = f", reasoning: {{reason_ratio_distribution: {law(50)}}}"
    plain, _ = drawn(scene(client_text(more=group_text("g", 64))))
    with_ratio, _ = drawn(scene(client_text(more=ratio + group_text("g", 64))))
    assert all(map(np.array_equal, jax.tree.leaves(plain), jax.tree.leaves(with_ratio)))


def test_sizes_of_a_plan():
    shape = compile_plan(SCENES["with prefix groups"]).shape
    assert (shape.num_groups, shape.accumulated_rounds) == (3, 6)
    assert (shape.path_depth, shape.num_nodes) == (10, 3 + 2 * (300 - 50))
    assert shape.has_sessions
    assert shape.has_shared_outputs
    few = compile_plan(SCENES["more rounds than requests"]).shape
    assert (few.accumulated_rounds, few.path_depth, few.num_nodes) == (20, 38, 2 * 19)
    for name in ("mixed", "multiprefix", "nonorthogonal"):
        plain = compile_plan(load_builtin(name)).shape
        assert (plain.path_depth, plain.num_nodes) == (1, max(plain.num_groups, 1))
        assert not plain.has_sessions
        assert not plain.has_shared_outputs
    apart = compile_plan(scene(client_text(more=turns(4, growth="")))).shape
    assert (apart.path_depth, apart.num_nodes, apart.has_shared_outputs) == (1, 1, False)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["short rounds", "to a horizon"])
def test_no_node_is_longer_than_the_longest(name):
    plan = compile_plan(SCENES[name], block_size=4)
    keys = jax.random.split(jax.random.key(2), 100)
    tables, _ = jax.jit(jax.vmap(lambda key: draw(plan.shape, plan.params, key)))(keys)
    assert 0 < np.max(tables.node_blocks) <= longest_node(plan)


def test_the_longest_node_of_constant_laws():
    assert longest_node(compile_plan(scene(client_text((40, 50), more=turns(3))))) == 4
    assert longest_node(compile_plan(scene(client_text((40, 50), more=turns(3, growth=""))))) == 0
    assert longest_node(compile_plan(scene(client_text((40, 50), more=turns(1))))) == 0
    assert longest_node(compile_plan(scene(client_text(more=group_text("g", 333))))) == 20
    loose = compile_plan(scene(client_text(((40, 10), 5), more=turns(3))))
    assert longest_node(loose, 1e-2) < longest_node(loose) < 1000 // 16


def test_the_mean_output_counts_the_rounds_of_each_client():
    clients = client_text((40, 50), 0.5), client_text((40, 200), 0.5, more=turns(3))
    spec = scene(*clients, num_requests=1000)
    plan, (table, _) = compile_plan(spec), drawn(spec)
    assert expected_output(plan) == pytest.approx((50 + 3 * 200) / 4)
    assert np.mean(table.output_len) == pytest.approx(expected_output(plan), rel=0.05)


def test_the_longest_request_of_constant_laws():
    assert longest_request(compile_plan(scene(client_text((40, 50))))) == 6
    assert longest_request(compile_plan(scene(client_text(more=group_text("g", 333))))) > 20
    assert longest_request(compile_plan(scene(client_text((40, 50), more=turns(3))))) == 1


def test_what_is_expected_of_a_draw_holds_it():
    """So a program under memory pressure is compiled once."""
    plan = compile_plan(load_builtin("multiprefix"))
    tables = [draw_once(plan.shape, plan.params, jax.random.key(seed))[0] for seed in range(8)]
    longest = max(int(np.max(table.input_len + table.output_len)) for table in tables)
    assert longest <= 16 * longest_request(plan) < 2 * longest
    assert all(int(np.sum(table.node_blocks)) == prefix_blocks(plan) for table in tables)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (turns(-1), r"clients\[0\]\.reasoning\.multi_turn\.max_rounds: got -1, allowed is a numb"),
        (
            turns(2.5),
            r"clients\[0\]\.reasoning\.multi_turn\.max_rounds: got 2.5 \(a number\), allo",
        ),
        (turns(2, -1), r"clients\[0\]\.reasoning\.multi_turn\.think_time_us: got -1, allowed is"),
        (turns(2, growth="grow"), r"multi_turn\.context_growth: got 'grow', allowed is '' or 'acc"),
    ],
)
def test_impossible_sessions_are_refused_by_the_parser(text, message):
    with pytest.raises(ConfigError, match=message) as caught:
        scene(client_text(more=text))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (turns(10**6), {}, r"clients\[0\]\.reasoning\.multi_turn\.max_rounds: got 1000000, allo"),
        (turns(10**5), {"num_requests": 2 * 10**6}, r"needs 6400000 draws, allowed are 4194304"),
        (turns(10**5), {"num_requests": 10**5}, r"max_rounds: .* up to 199998 contents each, allo"),
        (turns(3, 10**17), {}, r"clients\[0\]\.reasoning\.multi_turn\.think_time_us: 3 rounds, ea"),
    ],
)
def test_sessions_beyond_the_sizes_are_refused(text, options, message):
    with pytest.raises(ConfigError, match=message):
        compile_plan(scene(client_text(more=text)), **options)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (turns(4), "session_rounds is 4, but the draw was compiled for 3"),
        (turns(3, growth=""), "is_accumulating is False, but the draw was compiled for True"),
        ("", "session_rounds is 0, but the draw was compiled for 3"),
    ],
)
def test_numbers_of_other_sessions_are_refused(text, message):
    plan = compile_plan(scene(client_text(more=turns(3))))
    with pytest.raises(ConfigError, match=message):
        params_for(plan.shape, scene(client_text(more=text)))


def test_another_number_of_requests_is_a_prefix():
    spec = load_builtin("multiturn_heavy")
    long, _ = drawn(override(spec, num_requests=130))
    short, _ = drawn(spec)
    for field in ("arrival_us", "input_len", "session", "round_index"):
        assert np.array_equal(getattr(long, field)[:100], getattr(short, field)), field

"""Device draws: the laws, the merge, and what may change without changing anything else.

Statistical checks use the Dvoretzky-Kiefer-Wolfowitz bound: with NUM_DRAWS draws, the empirical
distribution function strays from the true one by more than TOLERANCE with probability below 1e-6.
Seeds are fixed, so a test that passes once passes always.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from blis_jax.errors import ConfigError
from blis_jax.workload.drawing import samplers
from blis_jax.workload.drawing.draw import compile_plan, draw, params_for
from blis_jax.workload.drawing.plan_params import gap_shape
from blis_jax.workload.spec import (
    ArrivalSpec,
    WorkloadSpec,
    load_builtin,
    load_spec,
    override,
    parse_spec,
)
from blis_jax.workload.table import NEVER_US, RequestTable, load_table
from tests.workload.test_table import check_structure

NUM_DRAWS = 200_000
TOLERANCE = math.sqrt(math.log(2 / 1e-6) / (2 * NUM_DRAWS))
MEAN_US = 5000.0

draw_once = jax.jit(draw, static_argnums=0)


@pytest.fixture(autouse=True)
def wide_numbers():
    with jax.enable_x64(True):
        yield


def distance(sample, cdf, points=None):
    """Largest gap between empirical and true distribution function, on both sides of each step."""
    sample = np.sort(sample)
    points = sample if points is None else points
    below = np.searchsorted(sample, points, side="left") / sample.size
    upto = np.searchsorted(sample, points, side="right") / sample.size
    true = cdf(points)
    if points is sample:
        return max(np.abs(true - below).max(), np.abs(true - upto).max())
    return np.abs(true - upto).max()


def accepted_gaps(process, cv, seed=0):
    law = jax.jit(samplers.GAP_LAWS[process], static_argnums=1)
    shape = jnp.float64(gap_shape(ArrivalSpec(process=process, cv=cv)))
    num = math.ceil(NUM_DRAWS / samplers.GAMMA_ACCEPTANCE) + 2000
    gaps, is_accepted = law(jax.random.key(seed), num, jnp.float64(MEAN_US), shape)
    gaps = np.asarray(gaps)[np.asarray(is_accepted)]
    assert gaps.size >= NUM_DRAWS
    return gaps[:NUM_DRAWS]


@pytest.mark.statistical
@pytest.mark.parametrize("cv", [0.1, 0.5, 0.999, 1.0, 1.5, 2.0, 4.0, 10.0])
def test_gamma_gaps_follow_their_law(cv):
    law = scipy.stats.gamma(1 / cv**2, scale=MEAN_US * cv**2)
    assert distance(accepted_gaps("gamma", cv), law.cdf) < TOLERANCE


@pytest.mark.statistical
@pytest.mark.parametrize("cv", [0.02, 0.6, 1.0, 2.5, 10.4])
def test_weibull_gaps_follow_their_law(cv):
    shape = gap_shape(ArrivalSpec(process="weibull", cv=cv))
    law = scipy.stats.weibull_min(shape, scale=MEAN_US / math.gamma(1 + 1 / shape))
    assert law.mean() == pytest.approx(MEAN_US)
    assert law.std() / law.mean() == pytest.approx(cv, rel=1e-6)
    assert distance(accepted_gaps("weibull", cv), law.cdf) < TOLERANCE


@pytest.mark.statistical
def test_poisson_gaps_follow_their_law():
    law = scipy.stats.expon(scale=MEAN_US)
    assert distance(accepted_gaps("poisson", None), law.cdf) < TOLERANCE


@pytest.mark.statistical
def test_gamma_with_cv_one_is_exponential_and_cv_two_is_not():
    law = scipy.stats.expon(scale=MEAN_US)
    assert distance(accepted_gaps("gamma", None), law.cdf) < TOLERANCE
    assert distance(accepted_gaps("gamma", 2.0), law.cdf) > 10 * TOLERANCE


@pytest.mark.statistical
def test_rejection_leaves_gaps_independent():
    """Rank correlation of neighbours; 5 standard deviations, false-alarm rate below 1e-6."""
    ranks = scipy.stats.rankdata(accepted_gaps("gamma", 2.0))
    assert abs(np.corrcoef(ranks[:-1], ranks[1:])[0, 1]) < 5 / math.sqrt(NUM_DRAWS)


@pytest.mark.parametrize("shape", [0.01, 0.25, 0.99, 1.0, 1.5, 4.0, 100.0])
def test_gamma_proposals_are_accepted_as_often_as_planned(shape):
    """The least true rate is 0.9517; 0.95 is 3.5 standard deviations below at NUM_DRAWS."""
    law = jax.jit(samplers.gamma_gaps, static_argnums=1)
    _, is_accepted = law(jax.random.key(3), NUM_DRAWS, jnp.float64(1.0), jnp.float64(shape))
    assert np.mean(is_accepted) > samplers.GAMMA_ACCEPTANCE


def lengths(params):
    def sample(key):
        return samplers.whole_tokens(params.draw(key, NUM_DRAWS))

    return np.asarray(jax.jit(sample)(jax.random.key(5)))


def rounded(cdf):
    """Distribution function of a rounded value that is at least 1."""
    return lambda count: np.where(count < 1, 0.0, cdf(count + 0.5))


@pytest.mark.statistical
def test_gaussian_lengths_are_clamped_then_rounded():
    sample = lengths(samplers.Gaussian(*map(jnp.float64, (250.0, 100.0, 100.0, 400.0))))
    law = scipy.stats.norm(250, 100)
    counts = np.arange(99, 401)
    true = np.where(counts < 100, 0, np.where(counts >= 400, 1, law.cdf(counts + 0.5)))
    assert distance(sample, lambda _: true, counts) < TOLERANCE
    assert (sample.min(), sample.max()) == (100, 400)


@pytest.mark.statistical
def test_exponential_lengths_follow_their_law():
    sample = lengths(samplers.Exponential(jnp.float64(20.0)))
    law = rounded(scipy.stats.expon(scale=20).cdf)
    assert distance(sample, law, np.arange(0, 400)) < TOLERANCE
    assert sample.min() == 1


@pytest.mark.statistical
def test_pareto_lognormal_lengths_follow_their_law():
    numbers = (1.5, 50.0, 5.0, 0.8, 0.3)
    sample = lengths(samplers.ParetoLognormal(*map(jnp.float64, numbers)))
    pareto, lognormal = (
        scipy.stats.pareto(1.5, scale=50),
        scipy.stats.lognorm(0.8, scale=np.exp(5.0)),
    )
    law = rounded(lambda value: 0.3 * pareto.cdf(value) + 0.7 * lognormal.cdf(value))
    assert distance(sample, law, np.arange(0, 20_000)) < TOLERANCE


@pytest.mark.statistical
def test_empirical_lengths_follow_their_law():
    values, weights = np.array([1.0, 2.0, 40.0, 300.0]), np.array([0.1, 0.2, 0.5, 0.2])
    sample = lengths(samplers.Empirical(jnp.asarray(values), jnp.cumsum(weights)))
    assert set(sample) == {1, 2, 40, 300}
    assert distance(sample, lambda _: np.cumsum(weights), values) < TOLERANCE


def test_constant_lengths_are_constant():
    assert set(lengths(samplers.Constant(jnp.float64(7.0)))) == {7}


def test_rounding_is_half_away_from_zero_and_at_least_one():
    values = jnp.array([0.0, 0.4, 0.5, 1.5, 2.5, 1e300], jnp.float64)
    assert samplers.whole_tokens(values).tolist() == [1, 1, 1, 2, 3, samplers.LONGEST_TOKENS]


def scene(clients, rate=1000.0, num_requests=100, extra=""):
    """A specification of clients given as YAML fragments."""
    head = f'version: "2"\naggregate_rate: {rate}\nnum_requests: {num_requests}\n{extra}clients:\n'
    return parse_spec(head + "".join(f"  - {{{client}}}\n" for client in clients))


def client_text(fraction=1.0, process="poisson", size=40, more=""):
    law = f"{{type: constant, params: {{value: {size}}}}}"
    return (
        f"rate_fraction: {fraction}, arrival: {{process: {process}}}, "
        f"input_distribution: {law}, output_distribution: {law}{more}"
    )


def drawn(spec, seed=0, **options):
    plan = compile_plan(spec, **options)
    table, is_short = draw_once(plan.shape, plan.params, jax.random.key(seed))
    return table, bool(is_short)


@pytest.mark.parametrize("name", ["mixed", "nonorthogonal", "multiprefix", "asymmetric", "lowload"])
def test_builtin_workloads_draw_valid_tables(name):
    spec = load_builtin(name)
    table, is_short = drawn(spec)
    assert not is_short
    assert table.num_rows == spec.num_requests
    check_structure(table, 16)
    for field in RequestTable.__dataclass_fields__:
        column = getattr(table, field)
        assert column.dtype == (jnp.int64 if field == "arrival_us" else jnp.int32), field
        assert not column.weak_type, field


def test_a_prefix_group_has_the_length_of_its_first_client():
    table, _ = drawn(load_builtin("nonorthogonal"))
    assert table.node_blocks.tolist() == [16]
    assert np.all(table.path_nodes == 0)
    assert table.input_len.min() >= 256 + 10
    assert table.input_len.min() < 512


def test_without_a_prefix_group_nothing_is_shared():
    with_group, _ = drawn(scene([client_text(more=", prefix_group: g, prefix_length: 64")]))
    without, _ = drawn(scene([client_text()]))
    assert np.all(with_group.path_nodes == 0)
    assert np.all(without.path_nodes == -1)
    assert np.array_equal(with_group.input_len, without.input_len + 64)
    assert np.array_equal(with_group.arrival_us, without.arrival_us)


def test_a_prefix_shorter_than_a_block_shares_no_block():
    table, _ = drawn(scene([client_text(size=3, more=", prefix_group: g, prefix_length: 9")]))
    assert np.all(table.path_nodes == -1)
    assert np.array_equal(table.prompt_key, np.arange(100))


def test_prompts_that_end_inside_the_block_after_the_prefix_have_one_key():
    group = ", prefix_group: g, prefix_length: 64"
    table, _ = drawn(scene([client_text(size=15, more=group), client_text(size=16, more=group)]))
    all_prefix = np.asarray(table.client) == 0
    keys = np.asarray(table.prompt_key)
    assert len(set(keys[all_prefix])) == 1
    assert len(set(keys[~all_prefix])) == np.sum(~all_prefix)


def test_ties_are_ranked_by_id_as_text():
    clients = [client_text(process="constant"), client_text(process="constant")]
    tied, _ = drawn(scene(clients, rate=2e6, num_requests=24))
    assert tied.arrival_us[:4].tolist() == [1, 1, 2, 2]
    assert tied.client[:4].tolist() == [0, 1, 0, 1]
    assert np.argsort(tied.tie_rank).tolist()[8:12] == [8, 9, 10, 11]
    assert np.argsort(tied.tie_rank).tolist()[:2] == [0, 1]
    crowded = [client_text(process="constant") for _ in range(12)]
    one_tie, _ = drawn(scene(crowded, rate=12e6, num_requests=12))
    assert np.argsort(one_tie.tie_rank).tolist() == [0, 1, 10, 11, 2, 3, 4, 5, 6, 7, 8, 9]
    untied, _ = drawn(scene([client_text(process="constant")], num_requests=24))
    assert untied.tie_rank.tolist() == list(range(24))


@pytest.mark.golden
@pytest.mark.parametrize("name", ["arr_constant", "ties", "ties_equal"])
def test_constant_arrivals_are_the_recorded_ones(golden_dir, name):
    spec = load_spec(golden_dir / "scheduling" / "specs" / f"{name}.yaml")
    (file,) = (golden_dir / "scheduling" / "workloads").glob(f"{name}_s*.npz")
    recorded, _ = load_table(file)
    table, is_short = drawn(spec)
    assert not is_short
    for field in ("arrival_us", "client", "slo_class", "tie_rank", "path_nodes", "node_blocks"):
        assert np.array_equal(getattr(table, field), getattr(recorded, field)), field
    if name != "arr_constant":
        assert np.array_equal(table.input_len, recorded.input_len)


def test_lifecycle_windows_silence_a_client():
    window = (
        ", lifecycle: {windows: [{start_us: 5000, end_us: 9000}, {start_us: 30000, end_us: 31000}]}"
    )
    table, is_short = drawn(scene([client_text(more=window), client_text()], rate=4000.0))
    assert not is_short
    arrival_us, client = np.asarray(table.arrival_us), np.asarray(table.client)
    inside = (arrival_us >= 5000) & (arrival_us < 9000) | (arrival_us >= 30000) & (
        arrival_us < 31000
    )
    assert np.all(inside[client == 0])
    assert 0 < np.sum(client == 0) < 30
    assert not np.all(inside[client == 1])


def test_when_all_windows_have_closed_the_rest_is_padding():
    window = ", lifecycle: {windows: [{start_us: 0, end_us: 20000}]}"
    table, is_short = drawn(scene([client_text(more=window)]))
    num_real = int(np.sum(np.asarray(table.arrival_us) != NEVER_US))
    assert not is_short
    assert 5 < num_real < 50
    assert np.all(table.input_len[num_real:] == 1)
    check_structure(table, 16)


def test_a_horizon_alone_ends_the_workload():
    spec = scene([client_text()], num_requests=0, extra="horizon: 200000\n")
    table, is_short = drawn(spec)
    num_real = int(np.sum(np.asarray(table.arrival_us) != NEVER_US))
    assert not is_short
    assert 130 < num_real < 270  # Poisson with mean 200
    assert table.arrival_us[num_real - 1] < 200_000
    check_structure(table, 16)


def test_same_seed_same_bits_other_seed_other_bits():
    spec = load_builtin("mixed")
    first, again, other = (drawn(spec, seed)[0] for seed in (3, 3, 4))
    assert all(map(np.array_equal, jax.tree.leaves(first), jax.tree.leaves(again)))
    assert not np.array_equal(first.arrival_us, other.arrival_us)


@pytest.mark.slow
def test_mapping_over_seeds_changes_no_bit():
    plan = compile_plan(load_builtin("mixed"))
    keys = jax.random.split(jax.random.key(0), 5)
    one = lambda key: draw(plan.shape, plan.params, key)  # noqa: E731
    vmapped, mapped = (
        jax.jit(jax.vmap(one))(keys),
        jax.jit(lambda keys: jax.lax.map(one, keys))(keys),
    )
    for row, key in enumerate(keys):
        for result in (vmapped, mapped):
            picked = jax.tree.map(lambda leaf, row=row: leaf[row], result)
            expected = draw_once(plan.shape, plan.params, key)
            assert all(map(np.array_equal, jax.tree.leaves(picked), jax.tree.leaves(expected)))


def counted_draw():
    """A draw, and a list with an entry for every time that it was compiled."""
    traces = []

    def counted(shape, params, key):
        traces.append(1)
        return draw(shape, params, key)

    return jax.jit(counted, static_argnums=0), traces


def test_other_numbers_do_not_compile_again():
    compiled, traces = counted_draw()
    spec = load_builtin("mixed")
    plan = compile_plan(spec)
    variants = [
        spec,
        override(spec, aggregate_rate=500),
        parse_spec(_yaml("mixed").replace("mean: 128", "mean: 64").replace("cv: 2.0", "cv: 1.5")),
        parse_spec(_yaml("mixed").replace("rate_fraction: 0.2", "rate_fraction: 0.25")),
        parse_spec(_yaml("mixed").replace("prefix_length: 512", "prefix_length: 100")),
    ]
    for seed, variant in enumerate(variants):
        params = params_for(plan.shape, variant)
        _, is_short = compiled(plan.shape, params, jax.random.key(seed))
        assert not is_short
    assert len(traces) == 1


def _yaml(name):
    from importlib import resources

    return (resources.files("blis_jax") / "data" / "workloads" / f"{name}.yaml").read_text()


def test_rate_scales_arrivals_and_nothing_else():
    spec = load_builtin("mixed")
    fast, _ = drawn(spec)
    slow, _ = drawn(override(spec, aggregate_rate=20.0))
    assert slow.arrival_us[-1] / fast.arrival_us[-1] == pytest.approx(100, rel=0.01)
    for client in range(3):
        mine, theirs = (
            np.asarray(t.input_len)[np.asarray(t.client) == client] for t in (fast, slow)
        )
        shared = min(len(mine), len(theirs))
        assert shared > 100
        assert np.array_equal(mine[:shared], theirs[:shared])


def test_constant_gaps_are_exact_over_a_batch_of_rates():
    """Half of 400 requests/s is a gap of 5,000 us; one rounding more would make it 4,999."""
    plan = compile_plan(scene([client_text(0.5, "constant"), client_text(0.5, "constant")]))
    rates = np.arange(50.0, 4050.0, 50.0)
    first = jax.jit(
        jax.vmap(
            lambda rate: draw(
                plan.shape,
                dataclasses.replace(plan.params, aggregate_rate=rate),
                jax.random.key(0),
            )[0].arrival_us[0]
        )
    )
    expected = [int(1.0 / (rate * (0.5 / 1.0) / 1e6)) for rate in rates]
    assert first(rates).tolist() == expected


def test_another_law_of_one_client_leaves_the_others_alone():
    plain, changed = (
        "{type: constant, params: {value: 9}}",
        "{type: exponential, params: {mean: 9}}",
    )
    first = (
        "rate_fraction: 1, arrival: {process: gamma, cv: 2}, "
        "input_distribution: %s, output_distribution: %s"
    )
    second = client_text(process="weibull, cv: 1.5", size=77)
    one, _ = drawn(scene([first % (plain, plain), second]))
    two, _ = drawn(scene([first.replace("gamma", "weibull") % (changed, plain), second]))
    mine, theirs = (np.asarray(t.arrival_us)[np.asarray(t.client) == 1] for t in (one, two))
    shared = min(len(mine), len(theirs))
    assert shared > 20
    assert np.array_equal(mine[:shared], theirs[:shared])


def test_more_headroom_keeps_the_draws():
    spec = load_builtin("mixed")
    table, is_short = drawn(spec)
    wider, is_wider_short = drawn(spec, headroom=2.0)
    assert not is_short
    assert not is_wider_short
    assert all(map(np.array_equal, jax.tree.leaves(table), jax.tree.leaves(wider)))


@pytest.mark.slow
def test_drawing_clients_together_changes_no_bit(monkeypatch):
    plan = compile_plan(load_builtin("asymmetric"))
    together, _ = jax.jit(lambda key: draw(plan.shape, plan.params, key))(jax.random.key(2))
    monkeypatch.setattr("blis_jax.workload.drawing.draw.MOST_PADDING", 1.0)
    apart, _ = jax.jit(lambda key: draw(plan.shape, plan.params, key))(jax.random.key(2))
    assert all(map(np.array_equal, jax.tree.leaves(together), jax.tree.leaves(apart)))


def test_too_few_draws_are_reported():
    plan = compile_plan(load_builtin("mixed"))
    first, *rest = plan.shape.clients
    starved = dataclasses.replace(first, num_proposals=96)
    shape = dataclasses.replace(plan.shape, clients=(starved, *rest))
    assert draw_once(shape, plan.params, jax.random.key(0))[1]
    assert not draw_once(plan.shape, plan.params, jax.random.key(0))[1]


@pytest.mark.statistical
@pytest.mark.parametrize("name", ["mixed", "asymmetric", "lowload"])
def test_draws_are_rarely_short(name):
    """2,000 seeds, none short; a plan short once in 150 seeds would pass with probability 1e-6."""
    plan = compile_plan(load_builtin(name))
    keys = jax.random.split(jax.random.key(11), 2000)
    is_short = jax.jit(
        lambda keys: jax.lax.map(lambda key: draw(plan.shape, plan.params, key)[1], keys)
    )
    assert not np.any(is_short(keys))


@pytest.mark.statistical
def test_shares_and_rates_are_those_of_the_specification():
    """300 seeds of 1,000 requests; 5 standard deviations, false-alarm rate below 1e-5 in all."""
    plan = compile_plan(load_builtin("mixed"))
    keys = jax.random.split(jax.random.key(13), 300)
    tables, _ = jax.jit(jax.vmap(lambda key: draw(plan.shape, plan.params, key)))(keys)
    counts = np.stack([np.sum(np.asarray(tables.slo_class) == code, axis=1) for code in (1, 2, 3)])
    for per_seed, share in zip(counts, (0.2, 0.5, 0.3), strict=True):
        error = per_seed.mean() / 1000 - share
        assert abs(error) < 5 * per_seed.std() / 1000 / math.sqrt(300) + 0.001  # initial transient
    lengths_drawn = np.asarray(tables.output_len).ravel()
    assert abs(lengths_drawn.mean() - 128) < 5 * 128 / math.sqrt(lengths_drawn.size) + 0.05
    last_s = np.asarray(tables.arrival_us)[:, -1] / 1e6
    assert abs(last_s.mean() - 0.5) < 5 * last_s.std() / math.sqrt(300) + 0.004


def test_a_gamma_law_beyond_its_range_is_drawn_as_the_reference_does():
    bursty, poisson = (scene([client_text(process=law)]) for law in ("gamma, cv: 11", "poisson"))
    assert np.array_equal(drawn(bursty)[0].arrival_us, drawn(poisson)[0].arrival_us)


def test_narrow_numbers_are_refused():
    plan = compile_plan(load_builtin("mixed"))
    with jax.enable_x64(False), pytest.raises(ConfigError, match="needs 64-bit numbers"):
        draw(plan.shape, plan.params, jax.random.key(0))


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        (
            WorkloadSpec.model_validate(
                {"version": "2", "aggregate_rate": 1, "servegen_data": {"path": "x"}}
            ),
            {},
            "the workload has no clients; read it with parse_spec or load_spec",
        ),
        (scene([client_text()], num_requests=0), {}, "neither a number of requests nor a horizon"),
        (scene([client_text()]), {"headroom": 0.5}, "headroom 0.5"),
        (scene([client_text()]), {"num_requests": -1}, "num_requests -1"),
        (scene([client_text()], num_requests=10**8), {}, "allowed are 4194304"),
        (scene([client_text()], rate=1e-9), {}, "last longer than the clock"),
        (
            scene([client_text(more=", lifecycle: {windows: [{start_us: 1e12, end_us: 2e12}]}")]),
            {},
            "move the lifecycle windows closer",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused(spec, options, message):
    with pytest.raises(ConfigError, match=message):
        compile_plan(spec, **options)


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        (
            [client_text(process="gamma")],
            "gap_law is 'gamma', but the draw was compiled for 'poisson'",
        ),
        ([client_text(), client_text()], "clients: 2 are given, but the draw was compiled for 1"),
    ],
)
def test_numbers_of_another_structure_are_refused(clients, message):
    plan = compile_plan(scene([client_text()]))
    with pytest.raises(ConfigError, match=message):
        params_for(plan.shape, scene(clients))

"""Policies from outside the package, through the public API alone: state, draws, news, pickers, files."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blis_jax import ClusterConfig, ConfigError, Policies, over_params, over_seeds, simulate
from blis_jax.commands.run.requests import draw_requests
from blis_jax.core.outcome import Outcome
from blis_jax.policies import (
    NoParams,
    admission_policy,
    number,
    priority_policy,
    pytree,
    registry,
    routing_policy,
    scheduler,
    scorer,
)
from blis_jax.runs.options import Options
from blis_jax.workload.spec import load_builtin, override
from tests.support.recorded.reference_data import REPO_ROOT

CONFIG = ClusterConfig(num_instances=3, long_prefill_token_threshold=256, scheduler="sjf")
FILE = REPO_ROOT / "examples" / "policies" / "learning.py"
SPEC = override(load_builtin("multiprefix"), num_requests=60)
SLOW_SPEC = override(SPEC, aggregate_rate=30.0)  # some requests complete before others arrive

pytestmark = pytest.mark.lenient_promotion  # a user's policy may add a Python number to an array


def drawn_from(spec):
    return draw_requests(spec, 3, 16)[0]


@pytest.fixture(scope="module")
def table():
    return drawn_from(SPEC)


@pytest.fixture(scope="module")
def slow_table():
    return drawn_from(SLOW_SPEC)


@routing_policy(is_random=True)
def random_routing(params, state, context):
    """Any instance, by the decision's own key."""
    return jax.random.randint(context.key, (), 0, 3), state


@admission_policy(is_random=True)
def random_admission(params, state, context):
    """Half of the requests, by the decision's own key."""
    return jax.random.bernoulli(context.key, 0.5), state


@scheduler()
def cached_first(params, state, context):
    """The largest cached prefix first."""
    return (-context.num_cached_blocks, context.request.tie_rank), state


@scheduler()
def by_arrival(params, state, context):
    """In order of arrival."""
    return (jnp.zeros_like(context.request.tie_rank), context.request.tie_rank), state


@scheduler()
def expected_first(params, state, context):
    """The largest prefix that the router expected to be cached first."""
    return (-context.num_expected_blocks, context.request.tie_rank), state


@pytest.mark.slow
def test_a_policy_draws_from_its_own_key(table):
    first = simulate(CONFIG, table, policies=Policies(routing=random_routing))
    again = simulate(CONFIG, table, policies=Policies(routing=random_routing))
    both = simulate(
        CONFIG, table, policies=Policies(routing=random_routing, admission=random_admission)
    )
    np.testing.assert_array_equal(first.requests.instance, again.requests.instance)
    assert set(first.requests.instance) == {0, 1, 2}
    assert 10 < int((both.requests.admitted == 0).sum()) < 50
    is_kept = both.requests.admitted == 1
    # admission has a key of its own, so its draws do not move those of routing
    np.testing.assert_array_equal(first.requests.instance[is_kept], both.requests.instance[is_kept])


@pytest.mark.slow
def test_a_scheduler_sees_what_is_cached(table):
    blind = simulate(CONFIG, table, policies=Policies(scheduler=by_arrival))
    seeing = simulate(CONFIG, table, policies=Policies(scheduler=cached_first))
    assert not np.array_equal(blind.requests.sched_delay_us, seeing.requests.sched_delay_us)
    assert blind.instances.completed_requests.sum() == 60
    assert seeing.instances.completed_requests.sum() == 60


@pytest.mark.slow
def test_a_scheduler_sees_what_the_router_expected(table):
    weighted = CONFIG.replace(routing_policy="weighted")
    expecting = simulate(weighted, table, policies=Policies(scheduler=expected_first))
    plain = simulate(weighted, table, policies=Policies(scheduler=by_arrival))
    assert not np.array_equal(expecting.requests.sched_delay_us, plain.requests.sched_delay_us)


# --- memory ---------------------------------------------------------------------------------------


def load(name: str):
    from blis_jax.policies.registry import find

    kind = {"taking_turns": "scorer", "fastest": "routing", "one_of_two_best": "picker"}[name]
    return find(kind, f"{FILE}:{name}")


def test_a_scorer_that_counts_equals_round_robin(table):
    turns = simulate(CONFIG, table, policies=Policies(scorers=(load("taking_turns"),)))
    usual = simulate(CONFIG.replace(routing_policy="round-robin"), table)
    np.testing.assert_array_equal(turns.requests.instance, usual.requests.instance)
    np.testing.assert_array_equal(turns.requests.e2e_us, usual.requests.e2e_us)


@pytree
class Steps:
    """Steps with waiting requests that the instance has begun."""

    count: object


def no_steps(params, shape):
    """None yet."""
    return Steps(jnp.int32(0))


@priority_policy(start=no_steps)
def alternating(params, state, context):
    """In every other step with a queue the youngest first, in the others the oldest."""
    age = (context.now_us - context.request.arrival_us).astype(jnp.float64)
    return jnp.where(state.count % 2 == 1, -age, age), Steps(state.count + 1)


@pytest.mark.slow
def test_an_instance_policy_moves_on_once_a_step(table):
    """A twin without memory that always does the same gives the order of one kind of step only."""
    busy = CONFIG.replace(num_instances=1, max_num_running_reqs=4, scheduler="priority-fcfs")
    record = simulate(busy, table, policies=Policies(priority=alternating))
    oldest = simulate(busy.replace(priority_policy="slo-based"), table)
    youngest = simulate(busy.replace(priority_policy="inverted-slo"), table)
    starts = [one.requests.scheduled_step_idx for one in (record, oldest, youngest)]
    assert not np.array_equal(starts[0], starts[1]) and not np.array_equal(starts[0], starts[2])
    assert record.instances.completed_requests.sum() == 60


# --- news of completions --------------------------------------------------------------------------


@pytree
class Heard:
    """What an observer has been told, by order of arrival."""

    ttft_us: object
    e2e_us: object
    instance: object
    tokens: object
    order: object
    count: object
    last_us: object
    backwards: object  # news older than the news before


def deaf(params, shape):
    """Nothing heard."""
    nothing = jnp.full(shape.num_requests, -1.0, jnp.float64)
    none = jnp.full(shape.num_requests, -1, jnp.int32)
    zero = jnp.int32(0)
    return Heard(nothing, nothing, none, none, none, zero, jnp.float64(-1.0), zero)


def hear(params, state, news):
    """Note everything."""
    at, now = news.request.tie_rank, news.completed_us.astype(jnp.float64)
    return Heard(
        state.ttft_us.at[at].set(news.ttft_us),
        state.e2e_us.at[at].set(news.e2e_us),
        state.instance.at[at].set(news.instance),
        state.tokens.at[at].set(news.num_output_tokens),
        state.order.at[at].set(state.count),
        state.count + 1,
        now,
        state.backwards + (now < state.last_us),
    )


HEARD = {}


@routing_policy(start=deaf, observe=hear)
def listening(params, state, context):
    """Least loaded; reports what it has heard."""

    def note(rank, now, heard):
        HEARD[int(rank)] = (int(now), jax.tree.map(np.asarray, heard))

    jax.debug.callback(note, context.request.tie_rank, context.now_us, state)
    loads = jnp.where(context.snapshots.is_active, context.snapshots.effective_load, 10**6)
    return jnp.argmin(loads), state


@pytest.mark.parametrize(
    ("is_corrected", "kv_model"),
    [
        (False, "no-eviction"),
        pytest.param(True, "block-level", marks=pytest.mark.slow),
        pytest.param(False, "block-level", marks=pytest.mark.slow),
        pytest.param(True, "no-eviction", marks=pytest.mark.slow),
    ],
)
def test_a_router_hears_of_every_completion_in_its_time(slow_table, kv_model, is_corrected):
    HEARD.clear()
    cluster = CONFIG.replace(corrected=is_corrected, routing_policy="least-loaded")
    options = Options(kv_model=kv_model, resolve_ties=False)
    record = simulate(cluster, slow_table, options, policies=Policies(routing=listening))
    jax.effects_barrier()
    plain = simulate(cluster, slow_table, options)
    np.testing.assert_array_equal(record.requests.e2e_us, plain.requests.e2e_us)  # only listens
    heard_some = 0
    done = record.requests
    for now, heard in HEARD.values():
        is_heard = heard.order >= 0
        expected = (done.left_us >= 0) & (done.left_us < now)
        np.testing.assert_array_equal(np.flatnonzero(is_heard), np.flatnonzero(expected))
        at = np.flatnonzero(is_heard)
        np.testing.assert_array_equal(heard.ttft_us[at], done.ttft_us[at])
        np.testing.assert_array_equal(heard.e2e_us[at], done.e2e_us[at])
        np.testing.assert_array_equal(heard.instance[at], done.instance[at])
        np.testing.assert_array_equal(heard.tokens[at], done.output_len[at])
        assert int(heard.backwards) == 0
        heard_some = max(heard_some, len(at))
    assert len(HEARD) == 60 and heard_some > 10


@pytree
class Finished:
    """Completions of the instance."""

    count: object


@priority_policy(
    start=lambda params, shape: Finished(jnp.int32(0)),
    observe=lambda params, state, news: Finished(state.count + 1),
)
def by_own_completions(params, state, context):
    """Sheds nothing; the longest prompt first once ten requests of this instance have completed."""
    length = context.request.input_len.astype(jnp.float64)
    return jnp.where(state.count >= 10, length, -length), state


@pytest.mark.slow
def test_an_instance_hears_of_its_own_completions(table):
    busy = CONFIG.replace(num_instances=1, max_num_running_reqs=4, scheduler="priority-fcfs")
    record = simulate(busy, table, policies=Policies(priority=by_own_completions))
    deaf_twin = dataclasses.replace(by_own_completions, observe=None)
    twin = simulate(busy, table, policies=Policies(priority=deaf_twin))
    assert record.instances.completed_requests.sum() == 60
    first = np.argsort(record.requests.left_us, kind="stable")[:4]
    assert not np.array_equal(record.requests.e2e_us, twin.requests.e2e_us)
    np.testing.assert_array_equal(record.requests.e2e_us[first], twin.requests.e2e_us[first])


def test_a_router_learns_which_instance_is_fast(table):
    record = simulate(CONFIG, table, policies=Policies(routing=load("fastest")))
    assert record.outcome == Outcome.COMPLETED
    assert set(record.requests.instance) == {0, 1, 2}


# --- numbers, lanes, files ------------------------------------------------------------------------


@pytree
class TiltParams:
    """Numbers of a tilted scorer."""

    slope: object = number(0.5, "", "score lost per place", low=0, high=1)


@scorer(TiltParams)
def tilted(params, state, context):
    """Favours the first instances."""
    place = jnp.arange(context.snapshots.is_active.shape[0])
    return 1.0 - params.slope * place / 4, state


@pytest.mark.slow
def test_numbers_are_traced_and_points_share_a_compilation(table):
    flat, steep = (Policies(scorers=((tilted.with_numbers(slope=s), 2.0),)) for s in (0.0, 1.0))
    instances = [simulate(CONFIG, table, policies=one).requests.instance for one in (flat, steep)]
    assert set(instances[0]) == {0} and set(instances[1]) == {0}
    both = over_params(
        [CONFIG, CONFIG], SPEC, 5, lambda record: record.requests.instance, policies=[flat, steep]
    )
    assert len(both) == 2


@pytest.mark.slow
def test_lanes_equal_rows_with_memory_and_news():
    policies = Policies(routing=load("fastest"))
    found = [
        over_seeds(
            CONFIG,
            SPEC,
            [1, 2],
            lambda record: record.requests.instance,
            Options(form=form, resolve_ties=False),
            policies,
        )
        for form in ("rows", "lanes")
    ]
    for rows, lanes in zip(*found, strict=True):
        np.testing.assert_array_equal(rows, lanes)


def test_a_file_in_the_configuration_is_the_same_policy(table):
    named = CONFIG.replace(routing_policy=f"{FILE}:fastest", **{"routing.gain": 0.5})
    handed = Policies(routing=load("fastest").with_numbers(gain=0.5))
    np.testing.assert_array_equal(
        simulate(named, table).requests.instance,
        simulate(CONFIG, table, policies=handed).requests.instance,
    )
    assert named.value("routing.gain") == 0.5
    assert CONFIG.replace(routing_policy=f"{FILE}:fastest").value("routing.gain") == 0.2


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"routing_policy": f"{FILE}:fastestt"}, "did you mean 'fastest'"),
        ({"routing_policy": f"{FILE}:taking_turns"}, "is of kind scorer; give one of kind routing"),
        ({"routing_policy": "nowhere.py:x"}, "the file cannot be read"),
        ({"routing_policy": "round-robbin"}, "did you mean 'round-robin'"),
        ({"routing.gain": 1.0}, "has no number 'gain'; it has none"),
        ({"routing_policy": f"{FILE}:fastest", "routing.gain": 2.0}, "between 0 and 1, got 2.0"),
        ({"routing_policy": f"{FILE}:fastest", "routing.gian": 1.0}, "did you mean 'gain'"),
        ({"scorer.mine.x": 1.0}, "belongs to no policy in use"),
    ],
)
def test_bad_names_and_numbers_get_one_sentence(changes, sentence):
    with pytest.raises(ConfigError, match=r".") as caught:
        CONFIG.replace(**changes)
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("import nothing_like_this", "line 1: the file cannot be imported: ModuleNotFoundError"),
        ("raise SystemExit(0)", "line 1: the file cannot be imported: SystemExit"),
        ("x = [\n1, 2][5]", "line 1: the file cannot be imported: IndexError"),
        ("def order(params)\n", "line 1: the file cannot be imported: SyntaxError: expected ':'"),
        ("@print\ndef order(): 1\n@print\ndef order(): 2", "line 4: order is also in line 2; give"),
        (
            "def order(params, state, context): 1",
            r"it is a plain function \(broken.py, line 1\); write",
        ),
        ("other = 1", "the file has no 'order'; decorate a function with @scheduler"),
    ],
)
def test_a_file_that_does_not_import_gets_one_sentence(tmp_path: Path, text: str, problem: str):
    path = tmp_path / "broken.py"
    path.write_text(f"{text}\n")
    with pytest.raises(ConfigError, match=problem):
        CONFIG.replace(scheduler=f"{path}:order")


def test_an_instance_that_is_not_there_ends_the_run(table):
    @routing_policy()
    def astray(params, state, context):
        return jnp.int32(7), state

    record = simulate(CONFIG, table, policies=Policies(routing=astray))
    assert record.outcome == Outcome.NO_SUCH_INSTANCE
    assert "is_active" in record.outcome.sentence


def test_only_a_policy_of_the_right_kind_can_be_handed_in():
    with pytest.raises(ConfigError, match="kind scorer; give a function decorated with @routing"):
        Policies(routing=tilted)
    with pytest.raises(ConfigError, match="give one above 0"):
        Policies(scorers=((tilted, 0.0),))
    with pytest.raises(ConfigError, match=r"declare it as `number"):

        @pytree
        class Plain:
            """A field without a declaration."""

            value: float

        scorer(Plain)(lambda params, state, context: (None, state))
    assert NoParams() is not None


# --- scorers and sessions beside a routing policy -------------------------------------------------


BY_SCORES = """
import jax.numpy as jnp
from blis_jax.policies import routing_policy

@routing_policy()
def added(params, state, context):
    scores = jnp.clip(context.scorer_scores, 0.0, 1.0)
    total = sum(share * each for share, each in zip(context.scorer_shares, scores))
    return jnp.argmax(total), state

@routing_policy()
def by_session(params, state, context):
    return jnp.where(context.has_session, 1, 2), state
"""
BESIDE = "prefix-affinity:3,load-balance:1"


@pytest.fixture(scope="module")
def by_scores(tmp_path_factory):
    path = tmp_path_factory.mktemp("policies") / "by_scores.py"
    path.write_text(BY_SCORES)
    return f"{path}:added", f"{path}:by_session"


def test_scorers_count_beside_a_policy_from_a_file(table, by_scores):
    weighted = CONFIG.replace(routing_policy="weighted", routing_scorers=BESIDE)
    own = CONFIG.replace(routing_policy=by_scores[0], routing_scorers=BESIDE)
    assert own.scorers() == weighted.scorers()
    expected = simulate(weighted, table).requests.instance
    np.testing.assert_array_equal(simulate(own, table).requests.instance, expected)
    assert len(set(expected)) > 1
    handed = simulate(
        CONFIG.replace(routing_scorers=BESIDE), table,
        policies=Policies(routing=registry.find("routing", by_scores[0])),
    )  # fmt: skip
    np.testing.assert_array_equal(handed.requests.instance, expected)


def test_a_policy_that_reads_scores_without_scorers_is_refused(table, by_scores):
    with pytest.raises(ConfigError, match=r"reads context.scorer_scores, and there are no scorers"):
        simulate(CONFIG.replace(routing_policy=by_scores[0]), table)
    with pytest.raises(ConfigError, match="load-balanc"):
        CONFIG.replace(routing_policy=by_scores[0], routing_scorers="load-balanc:1")
    assert (
        CONFIG.replace(routing_scorers=BESIDE).scorers() == []
    )  # round-robin has none, as in BLIS


def test_a_policy_knows_who_has_a_session(table, by_scores):
    some = dataclasses.replace(table, session=np.where(np.arange(table.num_rows) % 3 == 0, 5, -1))
    routed = simulate(CONFIG.replace(routing_policy=by_scores[1]), some).requests.instance
    np.testing.assert_array_equal(routed, np.where(np.arange(60) % 3 == 0, 1, 2))

"""What a policy reads is found; what is not there is an error in one sentence and no number."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest

from blis_jax import ClusterConfig, ConfigError, Policies, simulate
from blis_jax.commands.run.requests import draw_requests
from blis_jax.errors import ConfigWarning
from blis_jax.policies import (
    ClusterChange,
    HandOver,
    Pool,
    admission_policy,
    cluster_policy,
    hand_over_policy,
    registry,
    routing_policy,
    scheduler,
    scorer,
)
from blis_jax.policies.reading import Unread, computed_by, reading, seen_by, signals_of
from blis_jax.workload.spec import load_builtin, override
from tests.policies.contexts import asked
from tests.support.scenes import Prompt, table_of, workload_of


@routing_policy()
def by_match(params, state, context):
    """The longest match."""
    return jnp.argmax(context.snapshots.prefix_match_blocks), state


@routing_policy()
def by_draw(params, state, context):
    """Any of two."""
    return jax.random.randint(context.key, (), 0, 2), state


@routing_policy()
def by_draw_of_the_run(params, state, context):
    """The same of two for a prompt."""
    return jax.random.randint(jax.random.fold_in(context.run_key, 1), (), 0, 2), state


@routing_policy()
def by_time(params, state, context):
    """The quickest."""
    return jnp.argmin(
        jnp.where(context.snapshots.is_active, context.snapshots.prompt_us, 1e9)
    ), state


def a_table(params, shape):
    return jnp.zeros((shape.num_keys,), jnp.int32)


@routing_policy(start=a_table)
def by_key(params, state, context):
    """The instance that had the key."""
    return state[context.prompt_key], state


@admission_policy()
def by_route(params, state, context):
    """Where the first instance is chosen."""
    return context.picked == 0, state


@scheduler()
def by_cached(params, state, context):
    """The largest cached prefix first."""
    return (-context.num_cached_blocks, context.request.tie_rank), state


@scorer()
def by_copy(params, state, context):
    """The longest prefix in the copy of the caches."""
    return context.snapshots.cached_prompt_blocks / 100, state


@cluster_policy(next_time=lambda params, state: jnp.inf)
def by_requests(params, state, context):
    """As if it were about a request."""
    return ClusterChange(context.snapshots.prefix_match_blocks > 0, context.is_up, 0.0), state


READS = [
    (by_match, {"snapshots.prefix_match_blocks"}),
    (by_time, {"snapshots.is_active", "snapshots.prompt_us"}),
    (by_key, {"shape.num_keys", "prompt_key"}),
    (by_route, {"picked"}),
    (by_cached, {"num_cached_blocks", "request.tie_rank"}),
]


@pytest.mark.parametrize(("policy", "signals"), READS, ids=lambda one: getattr(one, "name", ""))
def test_what_a_policy_reads_is_found(policy, signals):
    assert signals_of(policy) == signals


# --- in ways that a function's text does not show ---------------------------------------------------


@scorer()
def through_jax(params, state, context):
    """Looks through vmap, a loop and a branch, and at the whole of the snapshots."""
    each = jax.vmap(lambda blocks, load: blocks - load)(
        context.snapshots.prefix_match_blocks, context.snapshots.queue_depth
    )
    total = jax.lax.fori_loop(0, 2, lambda at, sum_: sum_ + context.outstanding.input_len[0, at], 0)
    few = jax.lax.cond(
        total > 3, lambda seen: seen.num_rejected, lambda _: jnp.int32(1), context.snapshots
    )
    return jnp.clip((each * few).astype(jnp.float64), 0, 1), state


@scheduler()
def by_its_size(params, state, context):
    """Computes nothing from the contents, but asks how many there may be, and whether something was handed."""
    depth = context.contents.start.shape[1]
    return (
        context.queued_us if depth and context.handed is not None else 0,
        context.request.tie_rank,
    ), state


@scorer(routed=lambda params, state, context, instance: state + context.contents.length[0])
def when_routed(params, state, context):
    """Reads nothing when it is asked."""
    return jnp.zeros(context.snapshots.is_active.shape), state


def many(params, context, instance):
    """Where many prompts are outstanding."""
    return Pool(jnp.sum(context.outstanding.is_there, axis=1) < 3, context.computed_tokens > 0)


@hand_over_policy(pool=many)
def stays(params, state, context):
    """Nobody moves."""
    return HandOver(jnp.array(False), jnp.zeros(())), state


@routing_policy()
def for_six(params, state, context):
    """Made for six instances."""
    return jnp.argmax(jnp.arange(6, dtype=jnp.int32) * context.snapshots.prefix_match_blocks), state


def test_what_is_read_through_jax_is_found():
    read = signals_of(through_jax)
    assert {"snapshots.prefix_match_blocks", "snapshots.queue_depth", "outstanding"} <= read
    assert "snapshots.num_rejected" in read and not read & {"snapshots.prompt_us", "contents"}


def test_what_is_looked_at_without_a_computation_is_found():
    assert signals_of(by_its_size) == {"contents", "queued_us", "request.tie_rank"}


OURS = [
    pytest.param(registry.find(kind, name), id=f"{kind}-{name}")
    for kind, names in registry.NAMES.items()
    for name in names
]


@pytest.mark.parametrize("policy", OURS)
def test_policies_of_the_package_look_at_nothing_without_a_computation(policy):
    """So they are traced only once."""
    mine = dataclasses.replace(policy, decide=lambda *asked: policy.decide(*asked))
    assert policy.is_ours and not mine.is_ours
    assert signals_of(mine) == signals_of(policy)


def test_what_other_functions_of_a_policy_read_is_found():
    assert "contents" in signals_of(dataclasses.replace(when_routed, start=lambda *_: jnp.int32(0)))
    with_pool = dataclasses.replace(stays, pool=functools.partial(many, instance=None))
    assert signals_of(with_pool) == {"outstanding", "computed_tokens"}


def test_a_policy_for_one_size_is_traced_with_it():
    assert reading(for_six, 6).reads("snapshots.prefix_match_blocks")
    with pytest.raises(TypeError, match="incompatible shapes"):
        reading(for_six, 5)


# --- what a run does not have, or a policy does not say ---------------------------------------------


@pytest.mark.parametrize(
    ("field", "policy", "sentence"),
    [
        (
            "routing",
            by_draw,
            "the routing policy by_draw uses context.key without asking for it; declare it",
        ),
        ("routing", by_draw_of_the_run, "uses context.run_key without asking for it; declare it"),
        (
            "cluster",
            by_requests,
            "context.snapshots.prefix_match_blocks, which is about one request",
        ),
        (
            "scorers",
            (by_copy,),
            "context.snapshots.cached_prompt_blocks, the router's copy of the KV caches",
        ),
    ],
)
def test_a_run_ends_with_one_sentence(field, policy, sentence):
    config = ClusterConfig(num_instances=2)
    table = draw_requests(override(load_builtin("multiprefix"), num_requests=8), 3, 16)[0]
    with pytest.raises(ConfigError, match=sentence.replace(".", r"\.")):
        simulate(config, table, policies=Policies(**{field: policy}))


def test_what_an_older_file_declares_is_no_longer_needed():
    with pytest.warns(
        ConfigWarning, match=r"routing_policy\(reads_prefix_index=…\): what a policy reads is found"
    ):
        declared = routing_policy(reads_prefix_index=True)(by_match.decide)
    assert declared == by_match
    with pytest.raises(
        ConfigError, match=r"scorer\(observes=…\): there is no such part; .* mean 'observe'"
    ):
        scorer(observes=len)


@pytest.fixture
def context():
    """Two instances, of which the second has a block more of the prompt."""
    with jax.enable_x64(True):
        yield asked([1, 2], [3, 4], [0.0, 0.0])


USES = {
    "sum": lambda one: one + 1,
    "reversed sum": lambda one: jnp.arange(2) + one,
    "part": lambda one: one[0],
    "minus": lambda one: -one,
    "order": lambda one: one < 1,
    "equal": lambda one: one == 0,
    "unequal": lambda one: one != 0,
    "truth": lambda one: not one,
    "method": lambda one: one.astype(jnp.float64),
    "function": lambda one: jnp.where(jnp.array(True), one, 0),
    "array": jnp.asarray,
    "iteration": list,
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_whatever_is_done_with_it_is_an_error(use, context):
    seen = seen_by(by_time, context).snapshots.prefix_match_blocks
    with pytest.raises(ConfigError, match="and did not when it was traced with 4 instances"):
        use(seen)


def test_what_is_read_is_seen_and_the_context_goes_through_jax(context):
    assert seen_by(by_match, context).snapshots.prefix_match_blocks.tolist() == [3, 4]
    passed = jax.jit(lambda given: given)(seen_by(by_time, context))
    assert isinstance(passed.snapshots.prefix_match_blocks, Unread)
    assert passed.snapshots.queue_depth.shape == (2,)


@admission_policy()
def only_new(params, state, context):
    """No prompt that begins as one before it did."""
    return jnp.max(context.snapshots.prefix_match_blocks) == 0, state


def test_admission_sees_the_match_that_it_reads():
    prompts = [Prompt(1000 * at, 64, 2, 0, 0, 48) for at in range(4)]
    table = table_of(workload_of(prompts), num_nodes=4, depth=2, node_blocks=4)
    record = simulate(ClusterConfig(num_instances=2), table, policies=Policies(admission=only_new))
    assert record.requests.admitted.tolist() == [1, 0, 0, 0]


def test_policies_compute_the_same_where_their_operations_on_the_same_signals_are_equal() -> None:
    def least(signal: str, scale: float = 1.0) -> str | None:
        @routing_policy()
        def policy(params, state, context):
            values = getattr(context.snapshots, signal).astype(jnp.float64) * scale
            return jnp.argmin(values).astype(jnp.int32), state

        return computed_by(policy, 4)

    assert least("queue_depth") == least("queue_depth")
    texts = [least("queue_depth"), least("batch_size"), least("queue_depth", 1.0 + 2**-52)]
    assert len(set(texts)) == 3 and None not in texts

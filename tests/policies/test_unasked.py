"""Signals that a policy has not asked for: using one is an error in one sentence, and no number."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from blis_jax import ClusterConfig, ConfigError, Policies, simulate
from blis_jax.commands.run.requests import draw_requests
from blis_jax.policies import admission_policy, cluster_policy, registry, routing_policy, scheduler
from blis_jax.policies.unasked import _OF_ONE_KIND, SIGNALS, Unasked, seen_by
from blis_jax.workload.spec import load_builtin, override
from sweeps.promote.maps.reads import signals_read
from tests.policies.described.contexts import asked
from tests.support.scenes import Prompt, table_of, workload_of

NAMES = [
    (kind, name)
    for kind, names in registry.NAMES.items()
    for name in names
    if name != registry.NONE
]


@pytest.mark.parametrize(("kind", "name"), NAMES)
def test_every_policy_of_the_package_declares_what_it_reads(kind, name):
    policy = registry.find(kind, name)
    read = {
        one.partition(".")[2] if not one.startswith("snapshots.") else one
        for one in signals_read(policy)
    }
    missing = {
        declaration
        for declaration, signals in (SIGNALS | _OF_ONE_KIND.get(kind, {})).items()
        if read & set(signals) and not getattr(policy, declaration)
    }
    assert not missing


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


@pytest.mark.parametrize(
    ("field", "policy", "signal", "declaration"),
    [
        ("routing", by_match, "context.snapshots.prefix_match_blocks", "reads_prefix_index"),
        ("routing", by_draw, "context.key", "is_random"),
        ("routing", by_draw_of_the_run, "context.run_key", "is_random"),
        ("routing", by_time, "context.snapshots.prompt_us", "reads_prompt_time"),
        ("routing", by_key, "shape.num_keys", "reads_prompt_key"),
        ("admission", by_route, "context.picked", "reads_route"),
        ("scheduler", by_cached, "context.num_cached_blocks", "reads_cached_blocks"),
    ],
)
def test_a_run_ends_with_one_sentence(field, policy, signal, declaration):
    config = ClusterConfig(num_instances=2)
    table = draw_requests(override(load_builtin("multiprefix"), num_requests=8), 3, 16)[0]
    sentence = (
        f"{policy.name} uses {signal} without asking for it; declare it with {declaration}=True"
    )
    with pytest.raises(ConfigError, match=sentence.replace(".", r"\.")):
        simulate(config, table, policies=Policies(**{field: policy}))


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
    seen = seen_by(by_match, context).snapshots.prefix_match_blocks
    with pytest.raises(ConfigError, match="without asking for it"):
        use(seen)


def test_what_is_declared_is_seen_and_the_context_goes_through_jax(context):
    declared = dataclasses.replace(by_match, reads_prefix_index=True)
    assert seen_by(declared, context).snapshots.prefix_match_blocks.tolist() == [3, 4]
    passed = jax.jit(lambda given: given)(seen_by(by_match, context))
    assert isinstance(passed.snapshots.prefix_match_blocks, Unasked)
    assert passed.snapshots.queue_depth.shape == (2,)


def test_a_policy_that_is_asked_about_no_request_has_no_match():
    with pytest.raises(
        ConfigError, match="reads_prefix_index=… is for policies that are asked about"
    ):
        cluster_policy(reads_prefix_index=True, next_time=lambda params, state: jnp.inf)


@admission_policy(reads_prefix_index=True)
def only_new(params, state, context):
    """No prompt that begins as one before it did."""
    return jnp.max(context.snapshots.prefix_match_blocks) == 0, state


def test_admission_sees_the_match_that_it_declares():
    prompts = [Prompt(1000 * at, 64, 2, 0, 0, 48) for at in range(4)]
    table = table_of(workload_of(prompts), num_nodes=4, depth=2, node_blocks=4)
    record = simulate(ClusterConfig(num_instances=2), table, policies=Policies(admission=only_new))
    assert record.requests.admitted.tolist() == [1, 0, 0, 0]

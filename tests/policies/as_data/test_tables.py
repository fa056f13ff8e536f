"""A table of operations decides as the policy that it was made of, bit by bit; what has no table is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import papers.openevolve.routers
from blis_jax.core.exact import exact_product, exact_quotient, runtime_infinity
from blis_jax.core.types import EngineShape
from blis_jax.policies import registry
from blis_jax.policies.as_data.tables import SIZES, as_table
from blis_jax.policies.contract import NoState, Policy, routing_policy
from blis_jax.policies.reading import NotAsDataError
from blis_jax.policies.scenes import scene_of

NUM_SCORERS, NUM_DRAWS = 2, 64
PAPERS = {
    name: one
    for name, one in vars(papers.openevolve.routers).items()
    if isinstance(one, Policy) and one.kind == "routing"
}
NOT_AS_DATA = {
    "prefix-affinity": "reads shape.num_keys",  # it remembers every prompt
    "power-of-two": "reads key",
}
SHIPPED = {name: registry.find("routing", name) for name in registry.ROUTING}


def context(rng: np.random.Generator, size: int) -> Any:
    """Draw what a router may see; small numbers, so that ties are many, or any."""
    is_small = rng.random() < 0.5

    def one(path: tuple[Any, ...], leaf: Any) -> Any:
        name = ".".join(part.name for part in path)
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.key(0)
        if name == "draws":
            return rng.integers(0, 2**31, NUM_DRAWS).astype(np.int32)
        if leaf.dtype == np.bool_:
            truths = np.asarray(rng.random(leaf.shape) < 0.8)
            if name == "snapshots.is_active":
                truths[rng.integers(size)] = True
            return truths
        if leaf.dtype == np.float64:
            few = rng.choice([0.0, 0.1, 0.25, 0.5, 0.9, 0.95, 1.0], leaf.shape)
            return np.asarray(few if is_small else rng.random(leaf.shape))
        most = {"request.slo_class": 6, "request.input_len": 3000, "picked": size}
        high = most.get(name, 4 if is_small else 40)
        return np.asarray(rng.integers(0, high, leaf.shape)).astype(leaf.dtype)

    scene = scene_of("routing", size, scorers=NUM_SCORERS)
    seen = dataclasses.replace(scene.snapshots, pending_transfer_us=None, kv_thrashing_rate=None)
    return jax.tree_util.tree_map_with_path(one, dataclasses.replace(scene, snapshots=seen))


def check_decides_alike(policy: Policy, size: int, count: int = 40) -> None:
    """Compare decisions and what is kept, one after another, of a policy and its table."""
    rng = np.random.default_rng(size)
    with jax.enable_x64(True):
        table = as_table(policy, size, NUM_SCORERS)
        numbers, its = policy.values(), table.values()
        state = policy.start(numbers, EngineShape(size, 1, 1, 0, 1))
        kept = table.start(its, EngineShape(size, 1, 1, 0, 1))

        @jax.jit
        def compiled(state: Any, seen: Any, infinity: Any) -> Any:
            with runtime_infinity(infinity):
                return policy.decide(numbers, state, seen)

        interpreted = jax.jit(table.decide)
        for _ in range(count):
            seen = context(rng, size)
            chosen, state = compiled(state, seen, np.float64(np.inf))
            found, kept = interpreted(its, kept, seen)
            assert int(found) == int(chosen)
            for leaf, bits in zip(jax.tree.leaves(state), np.asarray(kept.registers), strict=False):
                values = bits.view(np.float64) if leaf.dtype == np.float64 else bits
                np.testing.assert_array_equal(values, np.broadcast_to(leaf, size))


@pytest.mark.parametrize("size", [1, 3, 4])
@pytest.mark.parametrize("name", [*sorted(SHIPPED.keys() - NOT_AS_DATA), *PAPERS])
def test_decides_as_the_policy(name: str, size: int) -> None:
    check_decides_alike({**SHIPPED, **PAPERS}[name], size)


def programs() -> dict[str, str]:
    """Return routing functions in Go, by name."""
    pytest.importorskip("tree_sitter_go", reason="the extra `evolve` is not installed")
    from tests.support.evolve.programs import PROGRAMS, whole

    return {name: whole(name) for name in PROGRAMS}


NO_TABLE = {  # what their numbers or operations are
    "bitmask": "uint64",
    "digits": "shift_right_arithmetic is no operation",
    "hash_ties": "uint8",
    "hashed": "uint8",
    "mathematics": "bitcast_convert_type is no operation",
    "narrow": "float32",
    "saturating": "shift_left is no operation",
}


@pytest.mark.parametrize("name", sorted(NO_TABLE))
def test_numbers_that_a_table_does_not_have_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(NotAsDataError, match=NO_TABLE[name]), jax.enable_x64(True):
        as_table(of_go(tmp_path, name, programs()[name]), 4, NUM_SCORERS)


def of_go(folder: Path, name: str, text: str) -> Policy:
    from sweeps.evolve.go.reader import policy_of
    from sweeps.evolve.go.source import read

    (folder / f"{name}.go").write_text(text)
    (folder / f"{name}.py").write_text(policy_of(read(folder / f"{name}.go")))
    return registry.find("routing", f"{folder / name}.py:route")


@pytest.mark.parametrize("size", [2, 5])
def test_programs_of_go_decide_as_compiled(size: int, tmp_path: Path) -> None:
    for name, text in programs().items():
        if name not in NO_TABLE:
            check_decides_alike(of_go(tmp_path, name, text), size, 15)


def deciding(function: Any, **declared: Any) -> Policy:
    """Return a policy that chooses the place of the largest of `function(context)`."""

    @routing_policy(**declared)
    def mine(params: Any, state: NoState, context: Any) -> Any:
        return jnp.argmax(function(context)).astype(jnp.int32), state

    return mine


def load(context: Any) -> jax.Array:
    return context.snapshots.effective_load.astype(jnp.float64)


ARRAYS = {
    "tables of two axes": lambda one: jnp.sum(load(one)[None, :] < load(one)[:, None], axis=1),
    "written entries": lambda one: jnp.zeros(4).at[one.snapshots.batch_size % 4].set(load(one)),
    "reversed and joined": lambda one: jnp.concatenate([load(one)[::-1][:3], jnp.ones(1)]),
    "int32 wraps around": lambda one: one.snapshots.effective_load * jnp.int32(1_000_003_333),
    "whole numbers": lambda one: lax.rem(one.snapshots.queue_depth, jnp.int32(3)) - one.snapshots.batch_size // 2,
    "rounding": lambda one: jnp.round(load(one) / 4) + jnp.floor(one.scores) - jnp.ceil(one.snapshots.kv_utilization),
    "functions": lambda one: jnp.exp(-one.snapshots.kv_utilization) + jnp.sqrt(load(one)) + jnp.log1p(one.scores),
    "a row by a number": lambda one: one.scorer_scores[one.request.slo_class % 2],
    "sums": lambda one: exact_quotient(load(one), 1.0 + jnp.sum(load(one))) + jnp.mean(one.scores),
    "lists": lambda one: jnp.stack([exact_product(0.3, x) - 0.1 for x in load(one)]),
    "clipped": lambda one: jnp.where(one.snapshots.kv_utilization < 0.5, jnp.clip(load(one), 2, 7), 3.0),
}  # fmt: skip


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_of_all_kinds_have_a_table(name: str) -> None:
    check_decides_alike(deciding(ARRAYS[name]), 4)


@pytest.mark.parametrize("name", NOT_AS_DATA)
def test_what_a_table_cannot_keep_or_draw_is_refused(name: str) -> None:
    with pytest.raises(NotAsDataError, match=NOT_AS_DATA[name]):
        as_table(SHIPPED[name], 4, NUM_SCORERS)


REFUSED = {
    "exact_product": lambda one: 0.3 * one.scores + 0.7 * load(one),
    "exact_product(a, b)": lambda one: one.scores * jnp.sum(one.scores * load(one)),
    "exact_quotient": lambda one: one.scores / jnp.sum(load(one)),
    "sort": lambda one: jnp.sort(load(one)),
    "loop": lambda one: lax.while_loop(lambda x: x[0] < 9, lambda x: x + 1, load(one)),
    "float32": lambda one: load(one).astype(jnp.float32),
    "outstanding": lambda one: jnp.sum(one.outstanding.is_there, axis=1),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_could_differ_from_the_compiled_form_is_refused(name: str) -> None:
    with pytest.raises(NotAsDataError) as refused:
        as_table(deciding(REFUSED[name]), 4, NUM_SCORERS)
    assert name.partition("(")[0] in str(refused.value)


def test_draws_without_asking_are_refused() -> None:
    with pytest.raises(NotAsDataError, match="reads draws"):
        as_table(deciding(lambda one: one.draws[:4] % 5), 4, NUM_SCORERS)


def test_equal_functions_have_equal_tables() -> None:
    ways = [
        lambda one: exact_product(0.5, one.scores) + jnp.where(load(one) > 3, 1.0, 0.0),
        lambda one: jnp.where(~(load(one) <= 3), 1.0, 0.0) + exact_product(one.scores, 0.25 + 0.25),
        lambda one: [jnp.exp(load(one)), jnp.where(load(one) > 3, 1.0, 0.0) + exact_product(0.5, one.scores)][1],
    ]  # fmt: skip
    tables = {as_table(deciding(way), 4, NUM_SCORERS) for way in ways[1:]}
    other = as_table(deciding(lambda one: one.scores), 4, NUM_SCORERS)
    assert len({*tables, other}) == len({*tables}) + 1
    assert len({as_table(deciding(ways[0]), 4, 2), as_table(deciding(ways[2]), 4, 2)}) == 1
    assert other.function() == next(iter(tables)).function()  # one engine for both


def long(count: int) -> Policy:
    """Return a policy of a chain of so many operations, and some."""

    def chain(one: Any) -> jax.Array:
        value = load(one)
        for _ in range(count // 2):
            value = jnp.abs(value - 1.37)
        return value

    return deciding(chain)


def test_the_next_size_holds_larger_programs() -> None:
    with jax.enable_x64(True):
        made = as_table(long(SIZES[0][0] + 8), 2, NUM_SCORERS)
    assert (made.form.num_operations, made.form.num_registers) == SIZES[1][:2]
    check_decides_alike(long(SIZES[0][0] + 8), 2, 3)


def test_programs_beyond_all_sizes_are_refused() -> None:
    with pytest.raises(NotAsDataError, match=f"more than {SIZES[-1][0]} operations"):
        as_table(long(SIZES[-1][0] + 8), 2, NUM_SCORERS)

"""Find the signals that a policy reads, by tracing it once with shapes alone; signals that it does not read are not
computed.

Some signals cost time to compute. A policy reads a signal if its decision depends on the signal, or if its function
looks at the signal in any other way. The engine leaves all other costly signals out of the policy's context, and using
one of them raises an error.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from blis_jax.core.kinds import KINDS
from blis_jax.core.types import EngineShape, Record
from blis_jax.errors import ConfigError
from blis_jax.lazy import jax
from blis_jax.policies.scenes import INSTANCES, PATH, SLOTS, answered, array_of, scene_of

if TYPE_CHECKING:
    from blis_jax.policies.contract import Policy

C = TypeVar("C", bound=Record)

RANDOM = ("key", "run_key", "draws")  # they say that a run depends on its seed
MATCH = "snapshots.prefix_match_blocks"
KV = ("snapshots.kv_utilization", "snapshots.free_kv_blocks", "snapshots.cache_hit_rate")
CPU_TIER = ("snapshots.pending_transfer_us", "snapshots.kv_thrashing_rate")
CACHES, PROMPT_TIME = "snapshots.cached_prompt_blocks", "snapshots.prompt_us"
ADAPTERS, ADAPTER = "snapshots.has_adapter", "adapter"
SCORERS = ("scorer_scores", "scorer_shares")
DEMAND = ("now_us", "num_blocks", "num_used_blocks", "num_waiting_blocks", "num_running")
NUM_KEYS = "shape.num_keys"
OF_SNAPSHOTS = (MATCH, *KV, *CPU_TIER, CACHES, ADAPTERS, PROMPT_TIME)
# by context: signals that only policies that read them get; `snapshots.` precedes the names of its signals
SIGNALS: dict[str, tuple[str, ...]] = {
    "GatewayContext": (
        *(*RANDOM, *OF_SNAPSHOTS, "contents", "outstanding", "has_session", ADAPTER, *SCORERS),
    ),
    "PickerContext": ("key", "draws"),
    "QueueContext": ("key", "num_cached_blocks", "contents", "handed"),
    "VictimContext": ("num_own_blocks",),
    "OffloadContext": DEMAND,
    "DraftContext": (),
    "ClusterContext": ("key", *OF_SNAPSHOTS, "fleet"),
    "HandOverContext": ("key",),
    "SourceContext": ("key",),
}
_ABOUT_A_REQUEST = (MATCH, CACHES, ADAPTERS, PROMPT_TIME)
_NO_REQUEST = "which is about one request, and a cluster policy is asked about none; leave it out"
Absent = tuple[tuple[str, str], ...]  # signals that a run does not have, each with the reason


class UnreadSignal(ConfigError):
    """A policy uses a signal that is not in its context."""

    def __init__(self, signal: str, sentence: str) -> None:
        super().__init__(sentence)
        self.signal = signal


class NotAsDataError(ConfigError):
    """A policy has no form as a table of operations, see as_data/tables.py."""


class Unread:
    """A signal that is not in a policy's context; any use of it raises an `UnreadSignal`."""

    def __init__(self, signal: str, sentence: str) -> None:
        self._said, self.sentence = (signal, sentence), sentence

    def __getattr__(self, name: str) -> Any:
        raise UnreadSignal(*self._said)

    def __repr__(self) -> str:
        return f"Unread{self._said!r}"

    def __hash__(self) -> int:  # JAX compares contexts that are handed on as a whole
        return hash(self._said)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Unread):
            self._refuse()
        return self._said == other._said  # type: ignore[attr-defined]

    def _refuse(self, *_: object) -> Any:
        raise UnreadSignal(*self._said)


_OPERATIONS = (
    *("bool", "len", "iter", "float", "int", "index", "getitem", "array", "jax_array", "call"),
    *("neg", "pos", "abs", "invert", "lt", "le", "gt", "ge"),
    *(
        f"{side}{name}"
        for side in ("", "r")
        for name in (
            *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"),
            *("and", "or", "xor", "lshift", "rshift"),
        )
    ),
)
for _name in _OPERATIONS:  # looked up on the type, where __getattr__ is not asked
    setattr(Unread, f"__{_name}__", Unread._refuse)


@functools.cache
def register() -> None:
    """Register `Unread` with JAX as a value without arrays; runs once, when JAX is first used."""
    jax.tree_util.register_static(Unread)


def _shown(signal: str) -> str:
    return signal if signal == NUM_KEYS else f"context.{signal}"


def _unread(policy: Policy, signal: str) -> Unread:
    """Return the placeholder for a signal that the policy does not read."""
    how = f"here, and did not when it was traced with {INSTANCES} instances; read it whatever the sizes"
    if signal in RANDOM:
        how = "without asking for it; declare it with is_random=True"
    return Unread(signal, f"{policy.words} uses {_shown(signal)} {how}")


def _signals(policy: Policy, context: str) -> tuple[str, ...]:
    """Return the signals that a context of this class holds only for policies that read them."""
    return (*SIGNALS[context], *(("picked",) if policy.kind == "admission" else ()))


def seen_by(policy: Policy, context: C) -> C:
    """Return the context without the costly signals that the policy does not read."""
    hidden = {
        signal: _unread(policy, signal)
        for signal in _signals(policy, type(context).__name__)
        if not (policy.is_random if signal in RANDOM else policy.reads(signal))
    }
    return _with(context, hidden)


def with_keys(policy: Policy, shape: EngineShape) -> EngineShape:
    """Return the shape with its number of prompt keys if the policy's state has an entry per key, else without it."""
    return (
        shape if policy.reads(NUM_KEYS) else _with(shape, {"num_keys": _unread(policy, NUM_KEYS)})
    )


def _with(context: C, values: Mapping[str, Any]) -> C:
    """Return the context with some signals replaced."""
    parts: dict[str, dict[str, Any]] = {}
    for signal, value in values.items():
        owner, _, name = signal.rpartition(".")
        parts.setdefault(owner, {})[name] = value
    changed = parts.pop("", {})
    for owner, fields in parts.items():
        changed[owner] = dataclasses.replace(getattr(context, owner), **fields)
    return dataclasses.replace(context, **changed)


# --- what a policy reads --------------------------------------------------------------------------


def reading(
    policy: Policy, num_instances: int = INSTANCES, absent: Absent = (), num_scorers: int = 1
) -> Policy:
    """Return the policy together with the signals that it reads.

    A policy that only works with the cluster's number of instances, or with its clock, is traced with these.

    Raises:
        ConfigError: the policy reads a signal that is absent in the run, or draws random numbers without declaring it.
    """
    function = dataclasses.replace(policy.function(), signals=None)
    signals = _signals_of(function, num_instances, absent, num_scorers)
    for signal in RANDOM:
        if signal in signals and not policy.is_random:
            raise ConfigError(_unread(policy, signal).sentence)
    return dataclasses.replace(policy, signals=signals)


@functools.lru_cache(
    maxsize=1024
)  # with the tries that fail, which every run of a batch would repeat
def _signals_of(
    function: Policy, num_instances: int, absent: Absent, num_scorers: int
) -> frozenset[str]:
    """Return the result of `signals_of` for the first number of instances and clock with which the policy works."""
    failures = []
    for size, clock in itertools.product((INSTANCES, num_instances), ("int64", "int32")):
        try:
            return signals_of(function, size, clock, absent, num_scorers)
        except UnreadSignal:
            raise
        except Exception as error:  # the policy's own, or an answer of another form
            failures.append(error)
    raise failures[-1 if isinstance(failures[-1], ConfigError) else 0]


@functools.lru_cache(maxsize=1024)
def signals_of(
    function: Policy,
    num_instances: int = INSTANCES,
    clock: str = "int64",
    absent: Absent = (),
    num_scorers: int = 1,
) -> frozenset[str]:
    """Return the fields of its contexts that a policy reads, such as `now_us` or `request.tenant`.

    Raises:
        ConfigError: the policy reads a signal that is absent.
    """
    register()
    kind, of_shape = KINDS[function.kind], (num_instances, SLOTS, 2 * SLOTS, PATH, PATH)
    shape = EngineShape(*of_shape, num_keys=2 * SLOTS, num_changes=SLOTS, clock=clock)
    names = {kind.context, *(["GatewayContext"] if function.pool or function.splits else ())}
    contexts = {
        name: scene_of(kind.name, num_instances, SLOTS, name, clock, num_scorers)
        for name in sorted(names)
    }
    reasons = dict(absent)
    if kind.name == "cluster":
        reasons |= dict.fromkeys(_ABOUT_A_REQUEST, _NO_REQUEST)
    missing = {
        signal: Unread(signal, f"{function.words} reads {_shown(signal)}, {reason}")
        for signal, reason in reasons.items()
    }

    with jax.enable_x64(True):
        numbers = _shapes_of(function.values())
        begun = numbers, array_of(np.int32)
        read = _used(
            functools.partial(_answers, function, shape),
            (*begun, _without(function, contexts, missing)),
        )
        if function.remembers and _keeps_keys(function, shape, numbers):
            read.add(NUM_KEYS)
        if not function.is_ours:  # a test shows that this adds nothing to ours
            read |= looked_at(function, shape, (*begun, contexts), read, missing)
    return frozenset(read)


def computed_by(
    policy: Policy, num_instances: int, num_scorers: int = 1, clock: str = "int64"
) -> str | None:
    """Return a text that is equal for policies that compute the same result by equal operations; None if it is unknown.

    It is unknown for a policy that observes completions.
    """
    if policy.observe is not None:
        return None
    register()
    of_shape = (num_instances, SLOTS, 2 * SLOTS, PATH, PATH)
    shape = EngineShape(*of_shape, num_keys=2 * SLOTS, num_changes=SLOTS, clock=clock)
    context = KINDS[policy.kind].context
    contexts = {context: scene_of(policy.kind, num_instances, SLOTS, context, clock, num_scorers)}
    with jax.enable_x64(True):
        numbers = _shapes_of(policy.values())
        traced = jax.jit(functools.partial(_answers, policy, shape), keep_unused=True)
        lowered = traced.lower(numbers, array_of(np.int32), contexts)
    return f"{policy.is_random} {policy.values()} {lowered.as_text()}"


def _shapes_of(numbers: Record) -> Any:
    """Return the shapes and dtypes of the numbers."""
    return jax.tree.map(lambda number: array_of(np.result_type(number), *np.shape(number)), numbers)


def _keeps_keys(function: Policy, shape: EngineShape, numbers: Record) -> bool:
    """Return whether the policy's first state depends on the number of prompt keys."""
    try:
        jax.eval_shape(
            lambda values: function.start(values, _with(shape, {"num_keys": Unread(NUM_KEYS, "")})),
            numbers,
        )
    except UnreadSignal:
        return True
    return False


def looked_at(
    function: Policy,
    shape: EngineShape,
    arguments: tuple[Any, Any, Mapping[str, Any]],
    read: Collection[str],
    missing: Mapping[str, Unread],
) -> set[str]:
    """Return the signals that a policy touches without using their values, for example only counting entries."""
    numbers, instance, contexts = arguments
    guarded = {signal for name in contexts for signal in _signals(function, name)} - {
        *read,
        *missing,
    }
    signals: set[str] = set()
    while True:
        hidden = {signal: Unread(signal, "") for signal in guarded - signals} | dict(missing)
        try:
            jax.eval_shape(
                functools.partial(_answers, function, shape),
                *(numbers, instance, _without(function, contexts, hidden)),
            )
        except UnreadSignal as error:
            if error.signal in missing:
                raise
            signals.add(error.signal)
        else:
            return signals


def _without(
    function: Policy, contexts: Mapping[str, Any], signals: Mapping[str, Unread]
) -> dict[str, Any]:
    """Return the contexts with these signals replaced by placeholders."""
    return {
        name: _with(
            context, {key: signals[key] for key in _signals(function, name) if key in signals}
        )
        for name, context in contexts.items()
    }


def _answers(
    function: Policy,
    shape: EngineShape,
    numbers: Record,
    instance: jax.Array,
    contexts: Mapping[str, Any],
) -> list[Any]:
    """Return the arrays that all functions of a policy return for a context."""
    context = contexts[KINDS[function.kind].context]
    state = function.start(numbers, shape)
    answers: list[Any] = [
        answered(function, state, context, function.decide(numbers, state, context))
    ]
    if function.routed is not None:
        answers.append(function.routed(numbers, state, context, instance))
    if function.hands is not None:
        answers.append(function.hands(numbers, context, instance))
    if function.pool is not None:
        answers.append(function.pool(numbers, contexts["GatewayContext"]))
    if function.splits is not None:
        answers.append(function.splits(numbers, contexts["GatewayContext"], instance))
    return [leaf for leaf in jax.tree.leaves(answers) if hasattr(leaf, "dtype")]


def _used(function: Callable[..., Any], arguments: tuple[Any, ...]) -> set[str]:
    """Return the fields of the contexts, the last of the `arguments`, on which the results of `function` depend."""
    dce_jaxpr = import_module("jax.interpreters.partial_eval").dce_jaxpr
    jaxpr = jax.make_jaxpr(function)(*arguments).jaxpr
    used = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[1]
    leaves, _ = jax.tree_util.tree_flatten_with_path(arguments)
    read = set()
    for (path, _), is_used in zip(leaves, used, strict=True):
        if is_used and path[0].idx == len(arguments) - 1:
            names = [part.name for part in path[2:]]
            read.add(".".join(names[: 2 if names[0] in ("snapshots", "request") else 1]))
    return read

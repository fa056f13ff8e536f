"""Contexts as shapes, for tracing a policy without a run; and checks of the value that a policy returns."""

from __future__ import annotations

import dataclasses
import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeGuard, TypeVar

import numpy as np

import blis_jax.policies.contexts as contexts
from blis_jax.core.kinds import KINDS
from blis_jax.core.types import Record, RequestView, Snapshots
from blis_jax.core.views import FleetParams, FleetView
from blis_jax.errors import ConfigError, shortened
from blis_jax.lazy import jax, jnp

if TYPE_CHECKING:
    from jax.typing import ArrayLike, DTypeLike

    from blis_jax.policies.contexts import Context
    from blis_jax.policies.contract import Policy

R = TypeVar("R", bound=Record)
S = TypeVar("S")

INSTANCES, SLOTS, PATH = 4, 8, 3
DTYPES = {"Int": np.int32, "Float": np.float64, "Bool": np.bool_}
ARRAY = re.compile(r"(Int|Float|Bool)\[(?:jax\.)?Array, '([^']*)'\]")


def array_of(dtype: DTypeLike, *size: int) -> Any:
    """Return the shape and dtype of an array, for tracing."""
    return jax.ShapeDtypeStruct(size, dtype)


@functools.lru_cache(maxsize=64)
class _Shapes:
    """Builds contexts of arrays without values; an axis is given by its name in the annotations."""

    def __init__(self, instances: int, slots: int, clock: str) -> None:
        self.time = np.dtype(clock)
        self.sizes = {"instance": instances, "slot": slots, "block": slots, "path": PATH}
        self.sizes |= {"node": slots, "kind": 2, "change": slots, "request": slots}

    def array(self, dtype: DTypeLike, *places: str) -> Any:
        """Return an array without values, with one axis for each name in `places`."""
        return array_of(dtype, *(self.sizes[name] for name in places))

    def made(self, cls: type[R], *places: str, **others: object) -> R:
        """Return a pytree of class `cls` whose arrays have the shapes and dtypes of its annotations. A field without
        named axes has the axes `places`; the fields in `others` are used as given.
        """
        values: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            annotated = ARRAY.fullmatch(str(field.type))
            if field.name in others:
                values[field.name] = others[field.name]
            elif annotated is None:  # a time, or a whole number that is not always there
                dtype = self.time if field.name.endswith("_us") else np.int32
                values[field.name] = self.array(dtype, *places)
            else:
                axes = [axis for axis in annotated[2].split() if not axis.startswith("*")]
                lengths = places if axes == ["..."] else axes
                values[field.name] = self.array(DTYPES[annotated[1]], *lengths)
        return cls(**values)


def scene_of(
    kind: str,
    instances: int = INSTANCES,
    slots: int = SLOTS,
    context: str = "",
    clock: str = "int64",
    scorers: int = 1,
) -> Any:
    """Return the context with which a policy of the kind is called, as shapes and with all signals.

    `context` names a context to build in place of the kind's own; `clock` is the dtype of times.
    """
    shapes = _Shapes(instances, slots, clock)
    array, made, time = shapes.array, shapes.made, shapes.time
    of_instances = "instance", "slot"
    real = array(np.float64, "instance")
    key = jax.eval_shape(lambda: jax.random.key(0))
    seen = made(
        Snapshots, "instance", pending_transfer_us=real, kv_thrashing_rate=real, prompt_us=real,
        has_adapter=array(np.bool_, "instance"),
    )  # fmt: skip
    name = context or KINDS[kind].context
    inside = ("slot",) if name in ("QueueContext", "VictimContext", "OffloadContext") else ()
    shares = made(contexts.LeadingContents)
    if inside:
        shares = jax.tree.map(lambda leaf: array_of(leaf.dtype, slots, *leaf.shape), shares)
    is_routing = kind == "routing"
    rated = array_of(np.float64, scorers, instances), array_of(np.float64, scorers)
    others: dict[str, Any] = {
        "request": made(RequestView, *inside),
        "snapshots": seen,
        "now_us": array(time),
        "key": key,
        "run_key": key,
        "scores": real if is_routing or kind == "picker" else None,
        "has_session": array(np.bool_),
        "scorer_scores": rated[0] if is_routing else None,
        "scorer_shares": rated[1] if is_routing else None,
        "picked": array(np.int32) if is_routing or kind == "admission" else None,
        "is_decode": array(np.bool_),
        "draws": array(np.int32, "slot"),
        "contents": shares,
        "outstanding": made(contexts.Outstanding, *of_instances),
        "queued_us": array(time, "slot"),
        "num_cached_blocks": array(np.int32, "slot"),
        "num_own_blocks": array(np.int32, "slot"),
        "priority": array(np.float64, "slot") if kind == "scheduler" else None,
        "handed": array(np.float64, "slot"),
        "is_paid": array(np.bool_, "instance"),
        "fleet": made(FleetView, "instance", params=made(FleetParams), has_more=array(np.bool_)),
    }
    return made(getattr(contexts, name), **others)


# --- answers: one sentence with the line of the policy says what is wrong -------------------------


_FORM = re.compile(r"(\w+?)(?:\[(\w+)\])?")
# by dtype: the kinds of dtype that do as well
_DO_AS_WELL = {"bool": "b", "int32": "iu", "float64": "iuf"}


def answered(policy: Policy, state: S, context: Context, answer: object) -> tuple[Any, S]:
    """Return the decision, with Python numbers as arrays, and the next state.

    Raises:
        ConfigError: the decision is not of the kind's form, or the next state differs in form from the state before.
    """
    if not isinstance(answer, tuple) or len(answer) != 2:
        _refuse(policy, f"returned {_shown(answer)}; return a pair, (decision, state)")
    decision, after = answer
    return _decision(policy, context, decision), kept(policy, state, after)


def kept(policy: Policy, before: S, after: S) -> S:
    """Return the next state of a policy after checking its form.

    Raises:
        ConfigError: the arrays of the next state differ in shape or dtype from those before.
    """
    old, new = (_leaves(state) for state in (before, after))
    if _form_of(before) != _form_of(after):
        _refuse(policy, f"returned the state {_shown(after)}; keep the form of {_shown(before)}")
    for old_leaf, new_leaf in zip(old, new, strict=True):
        if old_leaf is None and new_leaf is None:
            continue
        if not _is_alike(old_leaf, new_leaf):
            _refuse(
                policy,
                f"returned a state with {_shown(new_leaf)} where it had {_shown(old_leaf)}; keep shapes and dtypes",
            )
    return after


def _is_none(leaf: object) -> bool:
    return leaf is None


def _leaves(tree: object) -> list[object]:
    return list(jax.tree.leaves(tree, is_leaf=_is_none))


def _form_of(tree: object) -> jax.tree_util.PyTreeDef:
    return jax.tree.structure(tree, is_leaf=_is_none)


def _is_alike(before: object, after: object) -> bool:
    if not _is_array(after) or not _is_array(before) or jnp.shape(before) != jnp.shape(after):
        return False
    is_weak = not hasattr(after, "dtype") or getattr(after, "weak_type", False)
    kinds = jnp.result_type(before).kind, jnp.result_type(after).kind
    return bool(is_weak and kinds[0] == kinds[1]) or jnp.result_type(before) == jnp.result_type(
        after
    )


def _decision(policy: Policy, context: Context, decision: object) -> object:
    """Return the decision after checking that it has the form of the policy's kind."""
    form = KINDS[policy.kind].decision
    if form.startswith("("):
        parts = form.strip("()").split(", ")
        if not isinstance(decision, tuple) or len(decision) != len(parts):
            _refuse(policy, f"decided {_shown(decision)}; decide {form}")
        pairs = zip(decision, parts, strict=True)
        return tuple(_array(policy, context, value, part) for value, part in pairs)
    if form[0].islower():
        return _array(policy, context, decision, form)
    cls = getattr(contexts, form)
    if not isinstance(decision, cls):
        _refuse(policy, f"decided {_shown(decision)}; decide a {form}")
    for field in dataclasses.fields(cls):
        annotated = ARRAY.fullmatch(str(field.type))
        if annotated is not None:
            place = f"[{annotated[2]}]" if annotated[2] else ""
            part = f"{np.dtype(DTYPES[annotated[1]]).name}{place}"
            _array(policy, context, getattr(decision, field.name), part, f"{field.name} as ")
    return decision


def _array(policy: Policy, context: Context, value: object, form: str, what: str = "") -> ArrayLike:
    match = _FORM.fullmatch(form)
    assert match is not None
    dtype, place = match.groups()
    shape = _size(context) if place else ()
    if not (
        _is_array(value)
        and jnp.shape(value) == shape
        and jnp.result_type(value).kind in _DO_AS_WELL[dtype]
    ):
        here = f"{form}, here {dtype}[{shape[0]}]" if place else f"one {form}"
        _refuse(policy, f"decided {what}{_shown(value)}; decide {what}{here}")
    return value if hasattr(value, "dtype") else jnp.asarray(value, dtype)


def _size(context: Context) -> tuple[int, ...]:
    """Return the number of instances, slots or blocks among which the policy decides."""
    if isinstance(context, contexts.GatewayContext):
        return jnp.shape(context.snapshots.is_active)
    names = ("is_up", "is_eligible", "is_waiting", "is_running", "num_takers")
    return jnp.shape(next(getattr(context, name) for name in names if hasattr(context, name)))


def _is_array(value: object) -> TypeGuard[ArrayLike]:
    return hasattr(value, "dtype") or isinstance(value, bool | int | float)


def _shown(value: object) -> str:
    """Return an array's dtype and shape as text, such as int32[4] or bool[]; the text of any other value."""
    if _is_array(value):
        name = str(value.dtype) if hasattr(value, "dtype") else type(value).__name__
        return f"{name}[{','.join(map(str, jnp.shape(value)))}]"
    if value is None or isinstance(value, str):
        return shortened(value)
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_shown, value))})"
    return f"a {type(value).__name__}"


def _refuse(policy: Policy, sentence: str) -> NoReturn:
    code = getattr(policy.decide, "__code__", None)
    place = f" ({Path(code.co_filename).name}, line {code.co_firstlineno})" if code else ""
    raise ConfigError(f"{policy.words}{place} {sentence}")

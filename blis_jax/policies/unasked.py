"""Signals that a policy has to ask for: where it has not, using one is an error and not a number.

Some signals cost time to compute, and a random key says that a run depends on its seed. So a policy declares that it
uses them, and `seen_by` takes out of its context what it has not declared.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, TypeVar

from blis_jax.errors import ConfigError
from blis_jax.lazy import jax

if TYPE_CHECKING:
    from blis_jax.policies.contract import Policy

C = TypeVar("C")

# what each declaration brings, as fields of the context; a signal of `snapshots` has that before its name
SIGNALS: dict[str, tuple[str, ...]] = {
    "is_random": ("key", "run_key"),
    "reads_prefix_index": ("snapshots.prefix_match_blocks",),
    "reads_cpu_tier": ("snapshots.pending_transfer_us", "snapshots.kv_thrashing_rate"),
    "reads_caches": ("snapshots.cached_prompt_blocks",),
    "reads_prompt_time": ("snapshots.prompt_us",),
    "reads_cached_blocks": ("num_cached_blocks",),
    "reads_contents": ("contents",),
    "reads_draws": ("draws",),
    "reads_outstanding": ("outstanding",),
    "reads_handed": ("handed",),
    "reads_own_blocks": ("num_own_blocks",),
    "reads_fleet": ("fleet",),
}
_OF_ONE_KIND: dict[str, dict[str, tuple[str, ...]]] = {
    "admission": {"reads_route": ("picked",)},
    "offload": {
        "reads_demand": (
            "now_us", "num_blocks", "num_used_blocks", "num_waiting_blocks", "num_running"
        ),
    },
}  # fmt: skip


class Unasked:
    """A signal that the policy has not asked for; whatever is done with it raises a `ConfigError`."""

    def __init__(self, sentence: str) -> None:
        self._sentence = sentence

    def __getattr__(self, name: str) -> Any:
        raise ConfigError(self._sentence)

    def __repr__(self) -> str:
        return f"Unasked({self._sentence!r})"

    def __hash__(self) -> int:  # JAX compares contexts that are handed on as a whole
        return hash(self._sentence)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Unasked):
            self._refuse()
        return self._sentence == other._sentence  # type: ignore[attr-defined]

    def _refuse(self, *_: object) -> Any:
        raise ConfigError(self._sentence)


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
    setattr(Unasked, f"__{_name}__", Unasked._refuse)


def unasked(policy: Policy, signal: str, declaration: str) -> Unasked:
    """Make what stands for a signal that the policy has not declared."""
    _register()
    kind = policy.kind.replace("_", "-")
    return Unasked(
        f"the {kind} policy {policy.name} uses {signal} without asking for it; "
        f"declare it with {declaration}=True"
    )


_IS_REGISTERED: list[bool] = []


def _register() -> None:
    """Tell JAX that it has no arrays; only once, and only where JAX has been started."""
    if not _IS_REGISTERED:
        _IS_REGISTERED.append(True)
        jax.tree_util.register_static(Unasked)


def seen_by(policy: Policy, context: C) -> C:
    """Return the context without the signals that the policy has not declared."""
    hidden: dict[str, dict[str, Any]] = {"": {}, "snapshots": {}}
    for declaration, signals in (SIGNALS | _OF_ONE_KIND.get(policy.kind, {})).items():
        if not getattr(policy, declaration):
            for signal in signals:
                owner, _, name = signal.rpartition(".")
                hidden[owner][name] = unasked(policy, f"context.{signal}", declaration)
    fields: Any = context
    own = {name for name in hidden[""] if hasattr(fields, name)}
    changed = {name: hidden[""][name] for name in own}
    if hasattr(fields, "snapshots"):
        changed["snapshots"] = dataclasses.replace(fields.snapshots, **hidden["snapshots"])
    return dataclasses.replace(fields, **changed)

"""The kinds of policy, one entry each: settings, options, records and checks of policies are derived from the entries.

A new kind needs its entry and a place in the engine that calls its policy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

NONE = "none"  # where no policy of a kind decides, BLIS's own rule does
SAME = "same"  # requests in the decode pool are routed by the cluster's policy
GATEWAY, INSTANCE, MEMORY = "gateway", "instance", "memory"  # where a policy decides
DEFAULT_SCORERS = "prefix-affinity:3,queue-depth:2,kv-utilization:2"


@dataclass(frozen=True)
class Kind:
    """A kind of policy: the decorator, context type and decision type that all policies of the kind share."""

    name: str
    decorator: str  # of `blis_jax.policies`; it makes such a policy
    context: str  # what a policy is asked with: a class of policies/contexts.py
    decision: str  # what it answers: arrays, or a class of policies/contexts.py
    default: str  # the policy of a cluster that names none
    decides: str  # for the help of the option, and the table of kinds
    returns: str  # the decision in words
    place: str = GATEWAY
    named_by: str = ""  # the setting that names the policy; as the decorator if not given
    is_router: bool = False  # the decode pool may have its own
    parts: tuple[str, ...] = ()  # further functions and facts that only some kinds have
    needs: tuple[str, ...] = ()  # parts without which there is no policy of the kind

    @property
    def setting(self) -> str:
        """Return the name of the cluster setting that selects the policy."""
        return self.named_by or self.decorator

    @property
    def field(self) -> str:
        """Return the kind's field name in records of policies: `scorers` for the kind `scorer`, else its name."""
        return "scorers" if self.is_list else self.name

    @property
    def is_list(self) -> bool:
        """Return whether several policies decide together, each with a weight."""
        return self.name == "scorer"

    @property
    def is_optional(self) -> bool:
        """Return whether a cluster may have no policy of this kind."""
        return self.default == NONE

    @property
    def keeps_state(self) -> bool:
        """Return whether policies of this kind may keep a state and draw random numbers."""
        return self.place != MEMORY

    @property
    def own_parts(self) -> tuple[str, ...]:
        """Return the names of the parts that only policies of this kind may or must define."""
        return self.parts + self.needs

    @property
    def plural(self) -> str:
        """Return the plural name of its policies for use in sentences."""
        return f"{self._name} policies" if self._is_policy else f"{self._name}s"

    @property
    def singular(self) -> str:
        """Return the singular name of its policies for use in sentences."""
        return self._name + " policy" * self._is_policy

    @property
    def words(self) -> str:
        """Return the singular name with its article."""
        return f"{'an' if self._name[0] in 'aeiou' else 'a'} {self.singular}"

    @property
    def _is_policy(self) -> bool:
        return self.decorator.endswith("_policy")

    @property
    def _name(self) -> str:
        name = self.decorator.removesuffix("_policy")
        return name.replace("_", "-" if self._is_policy else " ")

    @property
    def decode_setting(self) -> str:
        """Return the name of the cluster setting that selects the policy for requests in the decode pool."""
        return f"decode_{self.setting}"


_ROWS = (
    Kind(
        "admission", "admission_policy", "GatewayContext", "bool", "always-admit",
        "which requests are let in", "a bool",
    ),
    Kind(
        "routing", "routing_policy", "GatewayContext", "int32", "round-robin",
        "which instance gets a request",
        "the index of an active instance", is_router=True, parts=("hands",),
    ),
    Kind(
        "scorer", "scorer", "GatewayContext", "float64[instance]", DEFAULT_SCORERS,
        "by name:weight pairs, how good each instance is for a request",
        "a number from 0 to 1 for each instance, higher is better; values outside are cut off",
        named_by="routing_scorers", is_router=True, parts=("hands", "routed"),
    ),
    Kind(
        "picker", "picker", "PickerContext", "int32", "first-best",
        "which instance weighted routing takes by the scores",
        "the index of an eligible instance", named_by="routing_picker", is_router=True,
    ),
    Kind(
        "priority", "priority_policy", "QueueContext", "float64[slot]", "constant",
        "which requests are urgent",
        "a number for each slot, higher is more urgent", INSTANCE,
    ),
    Kind(
        "scheduler", "scheduler", "QueueContext", "(float64[slot], int32[slot])", "fcfs",
        "which request is first",
        "a value and a rank for each slot: least value first, equal ones by least rank", INSTANCE,
    ),
    Kind(
        "cluster", "cluster_policy", "ClusterContext", "ClusterChange", NONE,
        "when instances go down and come up",
        "a `ClusterChange`", parts=("comes_last",), needs=("next_time",),
    ),
    Kind(
        "hand_over", "hand_over_policy", "HandOverContext", "HandOver", NONE,
        "which requests move on with their KV",
        "a `HandOver`", parts=("pool", "splits"),
    ),
    Kind(
        "source", "event_source", "SourceContext", "Happening", NONE,
        "what else happens, such as a fault of an instance",
        "a `Happening`", parts=("step_time", "gives_up", "figures"), needs=("next_time",),
    ),
    Kind(
        "victim", "victim_policy", "VictimContext", "float64[slot]", NONE,
        "who is evicted when KV blocks run out",
        "a value for each slot; the least is evicted, of equals the last of the batch", MEMORY,
    ),
    Kind(
        "offload", "offload_policy", "OffloadContext", "float64[block]", NONE,
        "which KV blocks get room in the CPU tier",
        "what room for each block is worth; at 0 or below it gets none", MEMORY,
    ),
    Kind(
        "draft", "draft_policy", "DraftContext", "int32", NONE,
        "how many tokens each request of a batch drafts for its next step",
        "a whole number; below 0 and above `num_speculative_tokens` it is cut", MEMORY,
    ),
)  # fmt: skip
KINDS = {kind.name: kind for kind in _ROWS}
ROUTER = tuple(kind for kind in _ROWS if kind.is_router)


def at_place(record: object, place: str) -> Iterator[Any]:
    """Yield the record's value for each policy that decides at `place`, in the order of the kinds."""
    for kind in KINDS.values():
        value = getattr(record, kind.field)
        if kind.place == place and value is not None:
            yield from value if kind.is_list else (value,)


def _record(name: str, are_optional: bool = False, **behind: str) -> Any:
    """Return a frozen dataclass with a field for each kind; fields of optional kinds default to None.

    `behind` maps a kind's field to the name of a further field that follows it.
    """
    fields: list[Any] = []
    for kind in KINDS.values():
        is_optional = are_optional or kind.is_optional
        fields.append((kind.field, Any, *([dataclasses.field(default=None)] * is_optional)))
        fields += [(behind[kind.field], Any)] if kind.field in behind else []
    return dataclasses.make_dataclass(name, fields, frozen=True)


if TYPE_CHECKING:

    class OfEachKind:
        """One value for the policy of each kind; a field is None where BLIS's own rule decides."""

        def __init__(self, **fields: object) -> None: ...
        def __getattr__(self, field: str) -> Any: ...

    class NumbersOfEachKind(OfEachKind):
        """The numbers of the policy of each kind, with further fields `scorer_weights` and `seed`."""

    class SomeOfEachKind(OfEachKind):
        """One value for the policy of each kind, any of which may be None."""

else:
    OfEachKind = _record("OfEachKind")
    NumbersOfEachKind = _record("NumbersOfEachKind", scorers="scorer_weights", scheduler="seed")
    SomeOfEachKind = _record("SomeOfEachKind", are_optional=True)

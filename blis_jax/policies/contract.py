"""Policies: each is a pure function, its numbers, and the state that it keeps.

Every policy has one form, `(params, state, context) -> (decision, state)`. The decorators below turn such a function
into a `Policy`, which `Policies`, commands and strategy files accept. Nothing here imports JAX, so a command can list
policies before it computes anything.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, Unpack, cast

import numpy as np

from blis_jax.core.kinds import KINDS, ROUTER, Kind, SomeOfEachKind
from blis_jax.core.pytrees import pytree
from blis_jax.core.types import EngineShape, Record
from blis_jax.errors import ConfigError, ConfigWarning, closest
from blis_jax.policies.contexts import PolicyParts
from blis_jax.policies.numbers import DECLARED, SourceFigure, checked, numbers_of
from blis_jax.policies.reading import seen_by, signals_of, with_keys
from blis_jax.policies.scenes import answered

if TYPE_CHECKING:
    from blis_jax.policies.contexts import (
        Context,
        DecideFn,
        HandsFn,
        NextTimeFn,
        ObserveFn,
        PoolFn,
        RoutedFn,
        SourceStepTimeFn,
        SplitsFn,
        StartFn,
    )

S = TypeVar("S")


@pytree
class NoParams:
    """The numbers of a policy that has none."""


@pytree
class NoState:
    """The state of a policy that keeps none."""


def no_state(params: object, shape: EngineShape | None) -> NoState:
    """Return the first state of a policy that keeps no state."""
    return NoState()


@pytree
class OverStep(Generic[S]):
    """The state of an instance's policy for this step, and for the next one."""

    now: S
    after: S


@pytree
class PolicyStates(Generic[S]):
    """The states of several policies, each at the place that its policy has among those of the mechanism."""

    of: tuple[S, ...] = ()

    def __getitem__(self, place: int) -> S:
        return self.of[place]

    def __iter__(self) -> Iterator[S]:
        return iter(self.of)

    def having(self, place: int, *states: S) -> Self:
        """Return a copy in which these states stand in a row from `place` on."""
        of = *self.of[:place], *states, *self.of[place + len(states) :]
        return dataclasses.replace(self, of=of)


# --- a policy as a value --------------------------------------------------------------------------


@dataclass(frozen=True)
class Policy:
    """A policy as a hashable value; what JAX compiles for it does not depend on its numbers, see `function`."""

    kind: str  # of core/kinds.py
    decide: DecideFn
    params: type = NoParams
    start: StartFn = no_state
    observe: ObserveFn | None = None
    # its own prefix index is filled by routings, as in BLIS, whatever feeds the index of prefix-affinity
    keeps_own_index: bool = False
    # draws from `context.key` or `context.run_key`; a function decides it from the policy's numbers
    is_random: bool | Callable[[Any], bool] = False
    next_time: NextTimeFn | None = None  # of a cluster policy or an event source: when it acts
    # whether it acts after everything else that the gateway does at that time
    comes_last: NextTimeFn | None = None
    step_time: SourceStepTimeFn | None = None  # of an event source: how long steps take
    gives_up: bool = False  # of an event source: `Happening.gives_up` may name a request
    figures: tuple[SourceFigure, ...] = ()  # of an event source: fields of its state
    hands: HandsFn | None = None  # of a routing policy or scorer: number sent along
    routed: RoutedFn | None = None  # of a scorer: called with the chosen instance
    pool: PoolFn | None = None  # of a hand-over policy: where requests may be routed
    splits: SplitsFn | None = None  # of a hand-over policy of blis-2026-08, called first
    numbers: tuple[tuple[str, float], ...] = ()  # given numbers; all others have defaults
    # the signals it reads, see reading.py; None: not traced yet. They follow from the functions, so are not compared
    signals: frozenset[str] | None = dataclasses.field(default=None, compare=False)

    @property
    def name(self) -> str:
        """Return the function's name, for messages."""
        return getattr(self.decide, "__name__", repr(self.decide))

    @property
    def remembers(self) -> bool:
        """Return whether the policy keeps a state."""
        return self.start is not no_state

    @property
    def is_ours(self) -> bool:
        """Return whether the policy belongs to this package."""
        return str(getattr(self.decide, "__module__", "")).startswith("blis_jax.")

    @property
    def words(self) -> str:
        """Return the policy's name in sentences, such as "the scorer precise-prefix-cache"."""
        name = self.name.replace("_", "-") if self.is_ours else self.name
        return f"the {KINDS[self.kind].singular} {name}"

    def reads(self, *signals: str) -> bool:
        """Return whether the policy reads any of these signals, such as `contents` or `snapshots.prompt_us`."""
        read = signals_of(self.function()) if self.signals is None else self.signals
        return not read.isdisjoint(signals)

    @property
    def figure_names(self) -> tuple[str, ...]:
        """Return the full names of the policy's figures, such as `source.slowed_requests`."""
        return tuple(f"{self.kind}.{figure.name}" for figure in self.figures)

    @property
    def may_draw(self) -> bool:
        """Return whether the policy, with its present numbers, declares that it draws random numbers."""
        is_random = self.is_random(self.values()) if callable(self.is_random) else self.is_random
        return bool(is_random)

    def ask(self, params: Record, state: S, context: Context) -> tuple[Any, S]:
        """Decide as in the engine: with only the signals that the policy reads in its context.

        Raises:
            ConfigError: the returned value is not of the form for the policy's kind.
        """
        answer = self.decide(params, state, seen_by(self, context))
        return answered(self, state, context, answer)

    def begin(self, params: Record, shape: EngineShape) -> Any:
        """Return the policy's first state; only a policy with a state per prompt key sees the number of keys."""
        return self.start(params, with_keys(self, shape))

    def with_numbers(self, **numbers: float) -> Policy:
        """Return the same policy with the given numbers.

        Raises:
            ConfigError: the policy has no such number, or the value is not allowed.
        """
        checked_numbers = checked(self.params, numbers, f"{self.kind} policy {self.name}")
        return dataclasses.replace(
            self, numbers=tuple(sorted((dict(self.numbers) | checked_numbers).items()))
        )

    def values(self) -> Any:
        """Return the params with the policy's numbers, as float64 scalars."""
        defaults = {name: number.default for name, number in numbers_of(self.params).items()}
        values = {
            name: np.float64(value) for name, value in (defaults | dict(self.numbers)).items()
        }
        return self.params(**values)

    def function(self) -> Policy:
        """Return the policy without its given numbers, which is what a compiled program depends on."""
        return dataclasses.replace(self, numbers=()) if self.numbers else self


class MakesPolicy:
    """A decorator that turns a function of the form `DecideFn` into a `Policy` of one kind."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.__name__ = kind.decorator
        form = f"(params, state, {kind.context}) -> ({kind.decision}, state)"
        self.__doc__ = f"Makes a policy of `{form}`."

    def __call__(
        self,
        params: type | DecideFn = NoParams,
        start: StartFn = no_state,
        observe: ObserveFn | None = None,
        **declared: Unpack[PolicyParts],
    ) -> Callable[[DecideFn], Policy]:
        """Return the decorator of a policy's function; the arguments are the fields of `Policy` with the same names.

        Raises:
            ConfigError: a field of `params` is not declared with `number`; a part that the kind needs is missing; or a
                given part, such as a state, is not allowed for the kind.
        """
        if not isinstance(params, type):
            name = getattr(params, "__name__", params)
            raise ConfigError(
                f"{self.__name__} decorates {name} without parentheses; write @{self.__name__}()"
            )
        numbers_of(params)
        declared = _without_readings(declared, self.__name__)
        kind, said = self.kind, {name for name, value in declared.items() if value is not None}
        for name in kind.needs:
            if name not in said:
                raise ConfigError(f"{kind.words} needs {name}=…; give it to {self.__name__}()")
        remembers = start is not no_state or observe is not None
        if not kind.keeps_state and (remembers or declared.get("is_random")):
            raise ConfigError(
                f"{kind.words} has no memory and no draws; "
                f"leave start, observe and is_random out of {self.__name__}()"
            )
        for name in sorted(said):
            having = [other.plural for other in KINDS.values() if name in other.own_parts]
            if having and name not in kind.own_parts:
                raise ConfigError(
                    f"{name}=… is for {' and '.join(having)}; leave it out of {self.__name__}()"
                )

        def decorate(decide: DecideFn) -> Policy:
            """Return the policy that decides with `decide`; nothing is called or traced yet."""
            made = Policy(kind.name, decide, params, start, observe, **declared)
            DECLARED.update(zip(made.figure_names, made.figures, strict=True))
            return made

        return decorate


def _without_readings(declared: PolicyParts, decorator: str) -> PolicyParts:
    """Return the declared parts without the signals that older files declare as read, which is no longer needed."""
    parts = PolicyParts.__annotations__
    for name in declared:
        if name.startswith("reads_"):
            warnings.warn(
                f"{decorator}({name}=…): what a policy reads is found by tracing it; leave it out",
                ConfigWarning,
                stacklevel=3,
            )
        elif name not in parts:
            known = ("start", "observe", *parts)
            raise ConfigError(
                f"{decorator}({name}=…): there is no such part; use {', '.join(known)}{closest(name, known)}"
            )
    return cast("PolicyParts", {name: value for name, value in declared.items() if name in parts})


DECORATORS = {name: MakesPolicy(kind) for name, kind in KINDS.items()}
admission_policy = DECORATORS["admission"]
routing_policy = DECORATORS["routing"]
scorer = DECORATORS["scorer"]
picker = DECORATORS["picker"]
priority_policy = DECORATORS["priority"]
scheduler = DECORATORS["scheduler"]
cluster_policy = DECORATORS["cluster"]
hand_over_policy = DECORATORS["hand_over"]
event_source = DECORATORS["source"]
victim_policy = DECORATORS["victim"]
offload_policy = DECORATORS["offload"]
draft_policy = DECORATORS["draft"]

Weighted = tuple[tuple["Policy", float], ...]  # scorers, each with its weight


@dataclass(frozen=True)
class Policies(SomeOfEachKind):
    """Policies that replace those named by a `ClusterConfig`; None keeps the configuration's policy.

    Attributes:
        admission: whether a request is admitted.
        routing: which instance a request gets.
        scorers: how good an instance is: policies, or pairs of a policy and its weight above 0 (1 if no weight is
            given).
        picker: which instance is chosen from the scores. Scorers or a picker without `routing` mean weighted routing.
        priority: how urgent a waiting request is.
        scheduler: which waiting request comes first.
        cluster: which instances are up; None means that all stay up.
        hand_over: which requests move on with their KV; None means that they stay.
        source: which further events happen; None means the configuration's.
        victim: which running request is evicted when KV blocks run out; None means the configuration's.
        offload: which KV blocks go to the CPU tier, and which are evicted there; None means the configuration's.
        draft: how many tokens a batch drafts for its next step; None means the configuration's.
        decode_routing: which instance a request gets in the decode pool; by default as `routing`.
        decode_scorers: how good an instance of the decode pool is; by default as `scorers`.
        decode_picker: which instance of the decode pool is chosen from the scores; by default as `picker`.

    Raises:
        ConfigError: a policy's kind differs from its field's, or a weight is not above 0.
    """

    if TYPE_CHECKING:  # from the table of kinds
        admission: Policy | None = None
        routing: Policy | None = None
        scorers: Weighted | tuple[Policy, ...] | None = None
        picker: Policy | None = None
        priority: Policy | None = None
        scheduler: Policy | None = None
        cluster: Policy | None = None
        hand_over: Policy | None = None
        source: Policy | None = None
        victim: Policy | None = None
        offload: Policy | None = None
        draft: Policy | None = None

    decode_routing: Policy | None = None
    decode_scorers: Weighted | None = None
    decode_picker: Policy | None = None

    def __post_init__(self) -> None:
        for kind in KINDS.values():
            self._check(kind.field, kind)
        for kind in ROUTER:
            self._check(f"decode_{kind.field}", kind)

    def _check(self, field: str, kind: Kind) -> None:
        """Refuse a value that is not a policy of the field's kind; pair scorers with their weights."""
        policies = getattr(self, field)
        if kind.is_list and policies is not None:
            policies = tuple(
                policy if isinstance(policy, tuple) else (policy, 1.0) for policy in policies
            )
            object.__setattr__(self, field, policies)
        for policy, weight in policies or () if kind.is_list else ((policies, 1.0),):
            if policy is None:
                continue
            if not (isinstance(policy, Policy) and policy.kind == kind.name):
                is_other = isinstance(policy, Policy)
                what = f"a policy of kind {policy.kind}" if is_other else repr(policy)
                raise ConfigError(
                    f"policies.{field} is {what}; give a function decorated with "
                    f"@{kind.decorator}() of blis_jax.policies"
                )
            if not (np.isfinite(weight) and weight > 0):
                raise ConfigError(
                    f"{field}: the weight of {policy.name} is {weight}; give one above 0"
                )

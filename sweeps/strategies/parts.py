"""The parts of a strategy file: parameters, objectives, constraints, criteria, limits, and how to search."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from sweeps.claims.grammar import CHANGE, Claim, bound

Direction = Literal["min", "max"]
Text = Annotated[str, Field(min_length=1)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class ClosedPart(BaseModel):
    """Read a part of a file: unknown keys are refused, and nothing changes it."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Parameter(ClosedPart):
    """A number or a choice that the search sets, in a setting or in one scorer's weight.

    `target` is a setting (`max_num_scheduled_tokens`) or a weight (`routing_scorers.queue-depth`);
    `flag` is the reference's name of a setting. `decimals` rounds what is simulated.
    """

    name: Text
    target: Text | None = None
    flag: Annotated[str, Field(pattern=r"^--[a-z-]+$")] | None = None
    type: Literal["real", "integer", "categorical"] | None = None
    low: Number | None = None
    high: Number | None = None
    prior: Literal["uniform", "log-uniform"] = "uniform"
    categories: tuple[Any, ...] | None = None
    decimals: Annotated[int, Field(ge=0, le=15)] | None = None


class Override(ClosedPart):
    """Settings that replace others where the parameters have these values."""

    when: dict[str, Any]
    settings: dict[str, Any]


class OnGpus(ClosedPart):
    """Settings that replace the mechanism's on some GPUs."""

    gpus: Annotated[tuple[Text, ...], Field(min_length=1)]
    settings: dict[str, Any]


class Objective(ClosedPart):
    """A metric to make small or large; several are added up with their weights, or form a front."""

    metric: Text
    direction: Direction | None = None  # None: the metric's own
    weight: Weight = 1.0
    at: Text | None = None  # one of the strategy's loads; None: its workload


class Constraint(ClosedPart):
    """`weight` × how far the metric is past its threshold; `min` bounds it above, `max` below."""

    metric: Text
    direction: Direction
    threshold: Number
    weight: Weight = 100.0
    at: Text | None = None  # one of the strategy's loads; None: its workload

    @property
    def claim(self) -> Claim:
        """Return the constraint's bound as a claim, without the load."""
        return bound(self.metric, self.direction, self.threshold)


class SearchLoad(ClosedPart):
    """A further workload on which a search runs every point; objectives and constraints name it with `at`."""

    workload: Annotated[str | dict[str, Any], Field()]
    rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None  # requests per second
    num_requests: Annotated[int, Field(ge=1)] | None = None


class SuccessCriterion(ClosedPart):
    """A goal of the best point: a threshold, or a change against the baseline in %."""

    metric: Text
    direction: Direction
    threshold: Number | None = None
    change_percent: Number | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> SuccessCriterion:
        if (self.threshold is None) == (self.change_percent is None):
            raise ValueError("give either threshold or change_percent")
        return self

    @property
    def claim(self) -> Claim:
        """Return the claim of the criterion, on all requests or on the class that it names."""
        if self.threshold is not None:
            return bound(self.metric, self.direction, self.threshold)
        assert self.change_percent is not None
        return bound(self.metric, self.direction, self.change_percent, CHANGE)


class Bounds(ClosedPart):
    """The values that a required setting may have."""

    min: Number | None = None
    max: Number | None = None
    equals: object = None

    def broken(self, value: Any) -> str | None:
        """Return the bound that a value violates, as text; None if it violates none."""
        if self.equals is not None and value != self.equals:
            return f"{self.equals!r}"
        if self.min is not None and not value >= self.min:
            return f"at least {self.min:g}"
        if self.max is not None and not value <= self.max:
            return f"at most {self.max:g}"
        return None


class Limits(ClosedPart):
    """SLO targets of one class, ms."""

    ttft_ms: Annotated[float, Field(gt=0)] | None = None
    tpot_ms: Annotated[float, Field(gt=0)] | None = None
    e2e_ms: Annotated[float, Field(gt=0)] | None = None


class Search(ClosedPart):
    """The budget, and how it is spent; the command's options replace these."""

    engine: Text = "denoised"
    calls: Annotated[int, Field(ge=1, le=100_000)] = 40
    initial: Annotated[int, Field(ge=1)] = 8
    batch: Annotated[int, Field(ge=1, le=4096)] = 8
    random_state: Annotated[int, Field(ge=0, lt=2**32)] = 42
    start: tuple[Text, ...] = ()  # points of the file that are tried first
    # numbers of seeds after which a point is dropped unless it may be the best; calls count points on all seeds
    rungs: tuple[Annotated[int, Field(ge=2)], ...] = ()
    failure_score: Number = 1e6  # of a point with a run that did not come to its end

    @model_validator(mode="after")
    def _ascending(self) -> Search:
        if list(self.rungs) != sorted(set(self.rungs)):
            rungs = ", ".join(map(str, self.rungs))
            raise ValueError(f"rungs must grow, such as [4, 16]; given are [{rungs}]")
        if self.rungs and self.engine == "pareto":
            raise ValueError(
                "rungs compare points with one best point, and the engine pareto has many; leave rungs out"
            )
        return self

    @model_serializer(mode="wrap")
    def _plain(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = handler(self)
        if not self.rungs:  # records of searches without rungs stay what they were
            fields.pop("rungs", None)
        return fields

"""Length laws that the revision of August 2026 adds or changes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from blis_jax.workload.lengths.laws import (
    ConstantLaw,
    EmpiricalLaw,
    ExponentialLaw,
    ExponentialParams,
    GaussianLaw,
    Law,
    NonNegative,
    Number,
    ParetoLognormalLaw,
    Strict,
    Tokens,
    problem_at,
)

REVISED_LAW_TYPES = (
    "gaussian",
    "exponential",
    "pareto_lognormal",
    "empirical",
    "constant",
    "lognormal",
)


class BoundedParams(ExponentialParams):
    """Mean in tokens, and bounds after rounding; 0: none."""

    min: Tokens = 0
    max: Tokens = 0

    @model_validator(mode="after")
    def _ordered(self) -> BoundedParams:
        _check_bounds(self.min, self.max)
        return self


class BoundedExponentialLaw(ExponentialLaw):
    """Exponential lengths within bounds."""

    params: BoundedParams


class LognormalParams(Strict):
    """Mean and standard deviation of the logarithm; bounds in tokens after rounding, 0: none."""

    mu: Number
    sigma: NonNegative
    min: Tokens = 0
    max: Tokens = 0

    @model_validator(mode="after")
    def _ordered(self) -> LognormalParams:
        _check_bounds(self.min, self.max)
        return self


class LognormalLaw(Law):
    """Lognormal lengths within bounds."""

    type: Literal["lognormal"]
    params: LognormalParams


RevisedLengthLaw = Annotated[
    GaussianLaw
    | BoundedExponentialLaw
    | ParetoLognormalLaw
    | ConstantLaw
    | EmpiricalLaw
    | LognormalLaw,
    Field(discriminator="type"),
]


def _check_bounds(low: int, high: int) -> None:
    if low and high and low > high:
        raise problem_at(["min"], f"got {low}, allowed is a number of at most max = {high}")

"""Length laws that the revision of August 2026 adds or changes.

It reads numbers that the first revision's files should not have, and so does this: lengths below 1 become 1; keys of
`params` that a law does not have change nothing, which is said.
"""

from __future__ import annotations

import warnings
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from blis_jax.errors import ConfigWarning, shortened
from blis_jax.workload.lengths.laws import (
    ConstantLaw,
    ConstantParams,
    EmpiricalLaw,
    ExponentialLaw,
    ExponentialParams,
    GaussianLaw,
    GaussianParams,
    Law,
    NonNegative,
    Number,
    ParetoLognormalLaw,
    ParetoLognormalParams,
    Strict,
    Tokens,
    no_boolean,
    power_of_ten,
    problem_at,
    signed_whole_part,
)

REVISED_LAW_TYPES = (
    "gaussian",
    "exponential",
    "pareto_lognormal",
    "empirical",
    "constant",
    "lognormal",
)

SignedTokens = Annotated[
    int,
    BeforeValidator(signed_whole_part),
    BeforeValidator(power_of_ten),
    BeforeValidator(no_boolean),
    Field(ge=-(2**63), lt=2**63),
]


class _Params(Strict):
    """Parameters among which further numbers may stand."""

    law: ClassVar[str]

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        for key, value in data.items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if key not in cls.model_fields and is_number:
                known = ", ".join(cls.model_fields)
                _say(
                    f"params.{shortened(str(key))[1:-1]} has no effect on {cls.law} lengths, which have {known}"
                )
                data = {name: kept for name, kept in data.items() if name != key}
        return super()._known_keys(data)  # type: ignore[operator]  # pydantic keeps it a method


class RevisedGaussianParams(_Params, GaussianParams):
    """Clamped to [min, max] tokens, rounded, and at least 1; min = max draws that value."""

    law = "gaussian"
    min: SignedTokens
    max: SignedTokens

    @model_validator(mode="after")
    def _drawable(self) -> RevisedGaussianParams:
        if self.min == self.max < 0:
            raise problem_at(["max"], f"got {self.max} beside an equal min, allowed is 0 or more")
        return self


class RevisedGaussianLaw(GaussianLaw):
    """Clamped gaussian lengths."""

    params: RevisedGaussianParams


class BoundedParams(_Params, ExponentialParams):
    """Mean in tokens, and bounds after rounding; 0: none."""

    law = "exponential"
    mean: Number
    min: Tokens = 0
    max: Tokens = 0

    @model_validator(mode="after")
    def _ordered(self) -> BoundedParams:
        _check_bounds(self.min, self.max)
        return self


class BoundedExponentialLaw(ExponentialLaw):
    """Exponential lengths within bounds."""

    params: BoundedParams


class RevisedParetoParams(_Params, ParetoLognormalParams):
    """Mixture of two heavy tails, in tokens."""

    law = "pareto_lognormal"
    mix_weight: Number

    @model_validator(mode="after")
    def _shared(self) -> RevisedParetoParams:
        if not 0 <= self.mix_weight <= 1:
            part = "Pareto" if self.mix_weight > 1 else "lognormal"
            _say(f"params.mix_weight: with {self.mix_weight:g} all lengths are of the {part} part")
        return self


class RevisedParetoLaw(ParetoLognormalLaw):
    """A Pareto value with probability mix_weight, else a lognormal one."""

    params: RevisedParetoParams


class RevisedConstantParams(_Params, ConstantParams):
    """A fixed number of tokens, at least 1."""

    law = "constant"
    value: SignedTokens


class RevisedConstantLaw(ConstantLaw):
    """Fixed lengths."""

    params: RevisedConstantParams


class LognormalParams(_Params):
    """Mean and standard deviation of the logarithm; bounds in tokens after rounding, 0: none."""

    law = "lognormal"
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
    RevisedGaussianLaw
    | BoundedExponentialLaw
    | RevisedParetoLaw
    | RevisedConstantLaw
    | EmpiricalLaw
    | LognormalLaw,
    Field(discriminator="type"),
]


def _check_bounds(low: int, high: int) -> None:
    if low and high and low > high:
        raise problem_at(["min"], f"got {low}, allowed is a number of at most max = {high}")


def _say(text: str) -> None:
    warnings.warn(f"{text}, as in BLIS", ConfigWarning, stacklevel=2)

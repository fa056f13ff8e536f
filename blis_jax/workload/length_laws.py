"""Length laws of the YAML specification, and helpers for all its parts.

The laws named `Revised…` are added or changed by the revision of August 2026. As that revision does, they accept
numbers that the first revision's files should not have: lengths below 1 become 1, and unknown number keys of `params`
are ignored with a warning.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from typing import Annotated, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from blis_jax.errors import ConfigWarning, closest, shortened


def no_boolean(value: object) -> object:
    """Refuse true and false, which would otherwise count as 1 and 0."""
    if isinstance(value, bool):
        raise PydanticCustomError("boolean", f"got {str(value).lower()}, allowed is a number")
    return value


def power_of_ten(value: object) -> object:
    """Return a number such as 1e6 as a float, since YAML reads it as text."""
    if isinstance(value, str) and "e" in value.lower():
        with contextlib.suppress(ValueError):
            return float(value)
    return value


def _whole_part(value: object, info: ValidationInfo) -> object:
    """Return a number of tokens without its fraction, with a warning, as the reference does."""
    return signed_whole_part(value, info) if isinstance(value, float) and value >= 0 else value


def signed_whole_part(value: object, info: ValidationInfo) -> object:
    """Return the whole part of a number, which may be negative, with a warning, as BLIS does."""
    if not isinstance(value, float) or not math.isfinite(value) or value.is_integer():
        return value
    whole = math.trunc(value)
    warnings.warn(
        f"params.{info.field_name}: {value:g} tokens are read as {whole}, as BLIS does",
        ConfigWarning,
        stacklevel=2,
    )
    return whole


Number = Annotated[float, BeforeValidator(no_boolean), Field(allow_inf_nan=False)]
Positive = Annotated[Number, Field(gt=0)]
NonNegative = Annotated[Number, Field(ge=0)]
Whole = Annotated[
    int, BeforeValidator(power_of_ten), BeforeValidator(no_boolean), Field(ge=-(2**63), lt=2**63)
]
Count = Annotated[Whole, Field(ge=0)]
Tokens = Annotated[
    int,
    BeforeValidator(_whole_part),
    BeforeValidator(power_of_ten),
    BeforeValidator(no_boolean),
    Field(ge=0, lt=2**63),
]


UNKNOWN_KEY = "unknown_key"  # type of a pydantic error


class Strict(BaseModel):
    """A frozen part of the specification that refuses unknown keys; an empty value counts as not given, as in BLIS."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: object) -> object:
        if isinstance(data, dict):
            for key in data:
                if key not in cls.model_fields:
                    allowed = ", ".join(cls.model_fields)
                    hint = closest(key, cls.model_fields)
                    text = f"unknown key, allowed here: {allowed}{hint}"
                    raise PydanticCustomError(UNKNOWN_KEY, "{text}", {"below": [key], "text": text})
            return {key: value for key, value in data.items() if value is not None}
        return data


class GaussianParams(Strict):
    """Clamped to [min, max] tokens, then rounded; min = max draws that value."""

    mean: Number
    std_dev: NonNegative
    min: Tokens
    max: Tokens

    @model_validator(mode="after")
    def _ordered(self) -> GaussianParams:
        if self.min > self.max:
            raise problem_at(
                ["min"], f"got {self.min}, allowed is a number of at most max = {self.max}"
            )
        return self


class ExponentialParams(Strict):
    """Mean in tokens."""

    mean: Positive
    min: Count | None = None  # accepted without effect, as in the reference
    max: Count | None = None  # accepted without effect, as in the reference


class ParetoLognormalParams(Strict):
    """Mixture of two heavy tails, in tokens."""

    alpha: Positive  # tail index of the Pareto part
    xm: Positive  # least value of the Pareto part
    mu: Number  # mean of the logarithm
    sigma: NonNegative  # standard deviation of the logarithm
    mix_weight: Annotated[Number, Field(ge=0, le=1)]  # probability of the Pareto part


class ConstantParams(Strict):
    """A fixed number of tokens."""

    value: Tokens


class Law(Strict):
    """The common base of all length laws, none of which reads values from a file."""

    file: None = None

    @field_validator("file", mode="before")
    @classmethod
    def _no_file(cls, file: object) -> None:
        if file not in (None, ""):
            raise ValueError(
                f"got {file!r}, but files are not supported; write the values under params"
            )


class GaussianLaw(Law):
    """Clamped gaussian lengths."""

    type: Literal["gaussian"]
    params: GaussianParams


class ExponentialLaw(Law):
    """Exponential lengths."""

    type: Literal["exponential"]
    params: ExponentialParams


class ParetoLognormalLaw(Law):
    """A Pareto value with probability mix_weight, else a lognormal one."""

    type: Literal["pareto_lognormal"]
    params: ParetoLognormalParams


class ConstantLaw(Law):
    """Fixed lengths."""

    type: Literal["constant"]
    params: ConstantParams


class EmpiricalLaw(Law):
    """Token counts and their probabilities, which need not sum to 1."""

    type: Literal["empirical"]
    params: dict[Whole, NonNegative]

    @field_validator("params", mode="before")
    @classmethod
    def _whole_keys(cls, params: object) -> object:
        if isinstance(params, dict) and len({str(key) for key in params}) < len(params):
            raise ValueError("a token count is given twice; keep one of them")
        return params

    @field_validator("params")
    @classmethod
    def _some_weight(cls, params: dict[int, float]) -> dict[int, float]:
        if not sum(params.values()) > 0:
            raise ValueError("no token count has a probability above 0; give at least one")
        if min(params) < 0:
            raise ValueError(f"token count {min(params)} is negative, allowed is 0 or more")
        return params


LengthLaw = Annotated[
    GaussianLaw | ExponentialLaw | ParetoLognormalLaw | ConstantLaw | EmpiricalLaw,
    Field(discriminator="type"),
]


def problem_at(below: list[str | int], text: str) -> PydanticCustomError:
    """Return an error located at a key below the part whose validator raises it."""
    return PydanticCustomError("value", "{text}", {"below": below, "text": text})


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
    """Parameters that may be accompanied by unknown numbers, which have no effect and cause a warning."""

    law: ClassVar[str]

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: object) -> object:
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


class _Bounds(_Params):
    """Bounds in tokens, applied after rounding; 0 for none."""

    min: Tokens = 0
    max: Tokens = 0

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        low, high = self.min, self.max
        if low and high and low > high:
            raise problem_at(["min"], f"got {low}, allowed is a number of at most max = {high}")
        return self


class BoundedParams(_Bounds, ExponentialParams):  # type: ignore[misc]  # its bounds are never None
    """Mean in tokens, within bounds."""

    law = "exponential"
    mean: Number


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


class LognormalParams(_Bounds):
    """Mean and standard deviation of the logarithm, within bounds."""

    law = "lognormal"
    mu: Number
    sigma: NonNegative


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


def _say(text: str) -> None:
    warnings.warn(f"{text}, as in BLIS", ConfigWarning, stacklevel=2)

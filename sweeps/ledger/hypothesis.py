"""Hypotheses as records hold them: family, VV&UQ category, type, claims, diagnostic clause."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from blis_jax.errors import ConfigError, closest
from blis_jax.files.strict_yaml import sentence
from blis_jax.reports.words import joined
from blis_jax.statistics.sequential import StoppingRule
from sweeps.claims.grammar import CHANGED, FLAT, REGION, Claim, parse_claim
from sweeps.claims.judge import HypothesisRule
from sweeps.claims.words import (
    CATEGORIES,
    DETERMINISTIC,
    DOMINANCE,
    EQUIVALENCE,
    JAX_RUNS,
    MONOTONICITY,
    PARETO,
    REFERENCE_RUNS,
    RESOLUTIONS,
    RETROSPECTIVE,
    SHORT_FAMILIES,
    TYPES,
    TYPES_OF,
    UQ,
    VALIDATION,
    VERIFICATION,
)
from sweeps.strategies.parts import ClosedPart, Text

WIDEST_EQUIVALENCE = 5.0  # %


class ArmRecord(ClosedPart):
    """An arm as it was when the hypothesis was written; `settings` are those that differ from the defaults."""

    text: Text
    strategy: Text
    settings: dict[str, Any]
    hash: Text


class WorkloadRecord(ClosedPart):
    """A workload as it was when the hypothesis was written."""

    name: Text
    hash: Text
    rate: float | None = None  # in place of the workload's own


class StoppingRecord(ClosedPart):
    """The stopping rule for the number of seeds, written before the first run."""

    decides: bool = False  # verdicts must be safe
    # half-width of the intervals, as a share of the reference's mean
    precision: float | None = None
    most_seeds: int

    @property
    def rule(self) -> StoppingRule:
        """Return the recorded rule as a `StoppingRule`."""
        return StoppingRule(self.decides, self.precision, self.most_seeds)


class Hypothesis(ClosedPart):
    """A hypothesis: the expected results and their reasons, written before the runs unless it says otherwise."""

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$")]
    statement: Text
    family: Text
    vvuq: Text
    type: Text
    name: Text  # of the strategy
    mechanism: Text
    diagnostic: Text  # what it indicates if it fails
    predictions: tuple[Text, ...] = ()  # claims; the first is the main one
    published: tuple[Text, ...] = ()  # claims of others, to be compared
    origin: str = ""
    preconditions: str = ""
    registered: Literal["before-run", "retrospective"] = "before-run"
    evidence: Literal[
        "simulation-reference-streams", "simulation-jax-streams", "published-claim", "judge"
    ] = "simulation-reference-streams"
    arms: dict[str, ArmRecord] = Field(default_factory=dict)  # strategy, baseline, reference
    workload: WorkloadRecord | None = None
    seeds: tuple[int, ...] = ()  # with a rule for stopping, the first stage
    stopping: StoppingRecord | None = None
    over: str = ""  # NAME=V1,V2,…: values of a setting of the strategy, or of rate
    profile: str = ""
    criteria: str = ""  # hash of the track's criteria

    @model_validator(mode="after")
    def _fits_together(self) -> Hypothesis:
        _check_pairs(self)
        if self.registered == RETROSPECTIVE and not self.origin:
            raise ValueError("a retrospective hypothesis needs an origin: who said it, and where")
        if self.published and self.registered != RETROSPECTIVE:
            raise ValueError("published claims belong to retrospective hypotheses")
        if self.is_simulated and self.predictions:
            _check_claims(self)
        if self.stopping is not None:
            _check_stopping(self)
        return self

    @property
    def is_simulated(self) -> bool:
        """Return whether the hypothesis is decided by runs."""
        return self.evidence in (REFERENCE_RUNS, JAX_RUNS)

    @cached_property
    def claims(self) -> tuple[Claim, ...]:
        """Return the predictions as claims."""
        return tuple(parse_claim(text) for text in self.predictions)

    @cached_property
    def published_claims(self) -> tuple[Claim, ...]:
        """Return the published figures as claims."""
        return tuple(parse_claim(text) for text in self.published)

    @property
    def rule(self) -> HypothesisRule:
        """Return the rule by which the hypothesis's claims are judged."""
        return HypothesisRule(
            self.type == DETERMINISTIC,
            self.type == DOMINANCE,
            self.vvuq == UQ or self.type == PARETO,
            is_anytime=self.stopping is not None and self.stopping.decides,
        )

    def on(self, seeds: Sequence[int]) -> Hypothesis:
        """Return the same hypothesis on the seeds that were used."""
        return self.model_copy(update={"seeds": tuple(seeds)})

    @property
    def iteration(self) -> str:
        """Return the iteration that the hypothesis belongs to: the number at the beginning of its id, or the id."""
        number = re.match(r"\d+", self.id)
        return number[0] if number else self.id


def hypothesis_of(values: Mapping[str, Any]) -> Hypothesis:
    """Check the values and return a hypothesis with them.

    Raises:
        ConfigError: a value is not allowed.
    """
    try:
        return Hypothesis.model_validate(values)
    except ValidationError as error:
        name = values.get("id") if isinstance(values, dict) else None
        where = f"hypothesis {name!r}: " if name else ""
        raise ConfigError(f"{where}{sentence(error).removeprefix('Value error, ')}") from None


def family_named(text: str) -> str:
    """Return a family by its name or its short name."""
    return _named(text, TYPES_OF, "family", SHORT_FAMILIES)


def type_named(text: str) -> str:
    """Return a type by its name, in any case."""
    return _named(text, TYPES, "type")


def category_named(text: str) -> str:
    """Return a VV&UQ category by its name, in any case."""
    return _named(text, CATEGORIES, "VV&UQ category")


def check_resolution(resolution: str, verdict: str) -> None:
    """Refuse a resolution that is unknown, or contradicts the verdict."""
    if resolution not in RESOLUTIONS:
        raise ConfigError(
            f"resolution {resolution!r} is unknown; use one of {'; '.join(RESOLUTIONS)}"
            f"{closest(resolution, RESOLUTIONS)}"
        )
    if verdict not in RESOLUTIONS[resolution]:
        fitting = [name for name, verdicts in RESOLUTIONS.items() if verdict in verdicts]
        raise ConfigError(
            f"resolution {resolution!r} does not go with the verdict {verdict}; use one of "
            f"{'; '.join(fitting)}"
        )


def _named(
    text: str, names: Collection[str], what: str, short: dict[str, str] | None = None
) -> str:
    known = {name.lower(): name for name in names} | (short or {})
    if text.lower() not in known:
        words = [*(short or ()), *names]
        raise ConfigError(
            f"{what} {text!r} is unknown; use one of {', '.join(words)}{closest(text, words)}"
        )
    return known[text.lower()]


def _check_pairs(hypothesis: Hypothesis) -> None:
    """Refuse a type that the family, or a category that the type, does not allow."""
    family_named(hypothesis.family), type_named(hypothesis.type), category_named(hypothesis.vvuq)
    allowed = TYPES_OF[hypothesis.family]
    if hypothesis.type not in allowed:
        raise ValueError(
            f"type {hypothesis.type} does not go with family {hypothesis.family}; use "
            f"{joined(allowed, 'or')}, or another family"
        )
    is_exact = hypothesis.type == DETERMINISTIC
    if is_exact != (hypothesis.vvuq == VERIFICATION):
        raise ValueError(
            f"category {hypothesis.vvuq} does not go with type {hypothesis.type}: Verification is an "
            "exact check (Deterministic), Validation a comparison, UQ a threshold with an interval"
        )


def _check_claims(hypothesis: Hypothesis) -> None:
    """Refuse claims that do not fit the hypothesis's type and category."""
    try:
        claims = hypothesis.claims
    except ConfigError as error:
        raise ValueError(str(error)) from None
    main, needs = claims[0], _NEEDS[hypothesis.type]
    is_along = any(claim.shape != REGION for claim in claims)
    if is_along != bool(hypothesis.over):
        raise ValueError(
            "a claim that falls, rises or stays flat needs --over NAME=V1,V2,…, and --over needs such a claim"
        )
    if not needs[0](claims):
        raise ValueError(f"type {hypothesis.type} predicts {needs[1]}, got {main.text!r}")
    if hypothesis.type == EQUIVALENCE:
        for claim in claims:
            if claim.is_change and not _is_narrow(claim):
                raise ValueError(
                    f"an equivalence is a change within {WIDEST_EQUIVALENCE:g} % around 0, got "
                    f"{claim.text!r}; claim less, or use Dominance for a direction"
                )
    is_comparison = main.is_change or main.shape != REGION or main.metric == CHANGED
    if hypothesis.vvuq == VALIDATION and not is_comparison:
        raise ValueError(f"Validation is a comparison: put a % into {main.text!r}, or use UQ")
    if hypothesis.vvuq == UQ and is_comparison:
        raise ValueError(
            f"UQ is a threshold for a value: leave the % out of {main.text!r}, or use Validation"
        )


def _check_stopping(hypothesis: Hypothesis) -> None:
    """Refuse a stopping rule without intervals to narrow, or with seeds that have no next one."""
    first = hypothesis.seeds
    if not hypothesis.predictions:
        raise ValueError(
            "--decide and --precision look at predictions, but there are none; give --predict"
        )
    if hypothesis.type == DETERMINISTIC:
        raise ValueError(
            "--decide and --precision add seeds until intervals are narrow enough, but a deterministic "
            "hypothesis has none; leave them out"
        )
    if first != tuple(range(first[0], first[0] + len(first))):
        raise ValueError(
            "--decide and --precision go on with the seed after the last, but the seeds are no range; "
            "give --first-seed and a number of --seeds"
        )


def _is_narrow(claim: Claim) -> bool:
    return -WIDEST_EQUIVALENCE <= claim.low <= 0 <= claim.high <= WIDEST_EQUIVALENCE


def _is_direction(claim: Claim) -> bool:
    return claim.is_effect or not (claim.is_change or _is_two_sided(claim))


def _is_two_sided(claim: Claim) -> bool:
    return abs(claim.low) != float("inf") and abs(claim.high) != float("inf")


def _is_same(claim: Claim) -> bool:
    return claim.shape == FLAT or (claim.shape == REGION and _is_two_sided(claim))


_NEEDS: dict[str, tuple[Any, str]] = {
    DETERMINISTIC: (lambda claims: claims[0].shape == REGION, "a region that every seed is in"),
    DOMINANCE: (
        lambda claims: claims[0].shape == REGION and _is_direction(claims[0]),
        "which way something changes, as `METRIC <= -20%`",
    ),
    MONOTONICITY: (
        lambda claims: claims[0].is_effect and claims[0].shape != REGION,
        "`METRIC falls` or `METRIC rises`",
    ),
    EQUIVALENCE: (
        lambda claims: all(map(_is_same, claims)),
        "what stays, as `METRIC in -5..5%` or `METRIC flat within 5%`",
    ),
    PARETO: (
        lambda claims: len({claim.metric for claim in claims}) > 1,
        "two metrics or more, one of them better and the others not worse",
    ),
}

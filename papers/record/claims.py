"""The published claims as data: figures with their rounding, and statements as conditions."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, ValidationError, model_validator

from blis_jax.errors import ConfigError
from blis_jax.files.strict_yaml import read_mapping, sentence
from blis_jax.metrics.metric import split_name
from papers.record.settings import RunSetting, named
from sweeps.claims.grammar import CHANGE, VALUE, Claim, beyond
from sweeps.strategies.parts import ClosedPart, Text

CLAIMS_FILE = "claims.yaml"
GAP, LIVELOCKS = "gap", "livelocks"
SHARES = ("reject_rate", "completion_rate", "cache_hit_rate")  # shown in %, and no changes
POINTS, SHARE_OF_NUMBER = 5.0, 0.1  # default tolerances: percentage points, share of a number
_NUMBER = r"-?[0-9]+(?:\.[0-9]+)?"
_PUBLISHED = re.compile(
    rf"(?:none|(?P<near>~)?(?P<low>{_NUMBER})(?:\.\.(?P<high>{_NUMBER}))?) (?P<unit>%|ms|x|tokens/s|requests)"
)
_LABELS = {
    "ttft_p99_ms": "TTFT P99",
    "e2e_p99_ms": "E2E P99",
    "tokens_per_sec": "throughput",
    "scheduling_delay_p99_ms": "scheduling delay P99",
    GAP: "TTFT P99 sheddable : critical",
    "reject_rate": "rejected requests",
    "completion_rate": "completed requests",
    "cache_hit_rate": "cache hits",
    "num_preemptions": "preemptions",
    "num_completed": "completed requests",
    "printed_completed": "completed requests, summed over the printed blocks",
    "worst_ttft_p99_ms": "TTFT P99 of the worst instance",
    "worst_e2e_p99_ms": "E2E P99 of the worst instance",
}
OF_SETTINGS = ("below", "above", "near", "not above")
Relation = Literal["below", "above", "near", "not above", "ever above", "never above"]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True)
class Published:
    """A number as printed: `~` marks an approximate one, `A..B` a range, `none` no number."""

    text: str
    value: float  # the middle of a range; NaN where nothing is published
    low: float
    high: float
    decimals: int
    unit: str
    is_near: bool

    @property
    def is_range(self) -> bool:
        """Return whether the paper gives a range or an approximate number instead of an exact one."""
        return self.is_near or self.high > self.low

    def says(self, value: float, within: float) -> bool:
        """Return whether a number reads like the published one when rounded or, after `~`, is within `within` of it."""
        if self.is_near:
            return abs(value - self.value) <= within
        return self.low <= float(f"{value:.{self.decimals}f}") <= self.high

    def is_cut(self, value: float) -> bool:
        """Return whether a number reads like the published one when further decimals are cut off instead of rounded."""
        scale = 10**self.decimals
        return not self.is_range and math.trunc(value * scale) / scale == self.value

    @property
    def shown_decimals(self) -> int:
        """Return the decimals to show: one more than the published number has, or as many if it has more than two."""
        return self.decimals if self.decimals > 2 else self.decimals + 1


def read_published(text: str) -> Published:
    """Read the number that a text means.

    Raises:
        ValueError: the text means none.
    """
    match = _PUBLISHED.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{text!r} is not a number with a unit (%, ms, x, tokens/s, requests) such as -50.8 %"
        )
    low, high = match["low"], match["high"]
    if low is None:
        return Published("none", math.nan, math.nan, math.nan, 1, match["unit"], False)
    _, _, fraction = low.partition(".")
    ends = float(low), float(high or low)
    value = (ends[0] + ends[1]) / 2
    return Published(text, value, *ends, len(fraction), match["unit"], match["near"] is not None)


class _Part(ClosedPart):
    model_config = ConfigDict(populate_by_name=True)


class StatementCondition(_Part):
    """One setting's metric against another's, or against a number; `within` is in % of the other metric.

    With `against` and `to_against`, the two settings' changes against these settings are compared instead.
    """

    of: str = ""  # the row's
    relation: Relation = Field(alias="is")
    to: str | float
    within: Amount = 0.0
    at: str = ""  # the claim's
    against: Text | None = None
    to_against: Text | None = None

    @model_validator(mode="after")
    def _has_its_kind(self) -> StatementCondition:
        if isinstance(self.to, str) != (self.relation in OF_SETTINGS):
            raise ValueError(f"{self.relation!r} does not go with {self.to!r}")
        if (self.against is None) != (self.to_against is None):
            raise ValueError("changes are compared: give both `against` and `to_against`")
        if self.against is not None and self.relation not in ("below", "above"):
            raise ValueError(f"{self.relation!r} does not go with changes; use below or above")
        return self

    @property
    def claim(self) -> Claim:
        """Return the claim about the difference or, with `near` and `not above`, about the change in %."""
        if self.relation in ("below", "above"):
            return beyond(self.of, self.relation == "above")
        low = -self.within if self.relation == "near" else -math.inf
        return Claim("", self.of, of=CHANGE, low=low, high=self.within)

    @property
    def settings(self) -> tuple[str, ...]:
        """Return the settings that the condition compares."""
        names = (self.at, self.to if isinstance(self.to, str) else None)
        return tuple(name for name in (*names, self.against, self.to_against) if name is not None)


class AddedMetric(_Part):
    """A metric of another setting that is added to a claim's."""

    of: Text
    at: Text


class _Entry(_Part):
    of: Text | None = None
    published: Text | None = None
    statement: Text | None = None
    conditions: tuple[StatementCondition, ...] = ()
    at: Text | None = None
    against: Text | None = None
    plus: AddedMetric | None = None
    seeds: tuple[int, ...] = ()
    within: Amount = 0.0
    tolerance: Amount | None = None
    note: str = ""
    unlike: str = ""
    lost: str = ""

    @model_validator(mode="after")
    def _is_one_of_two(self) -> _Entry:
        is_figure = self.published is not None
        if is_figure == (self.statement is not None) or (is_figure and self.conditions):
            raise ValueError(
                "a claim has either `of` and `published`, or a statement and conditions"
            )
        if self.published is not None:
            read_published(self.published)
        return self


class _Row(_Part):
    row: Text
    title: Text
    of: Text | None = None
    at: Text | None = None
    against: Text | None = None
    seeds: tuple[int, ...] = ()
    lost: str = ""
    claims: tuple[_Entry, ...]


class _File(_Part):
    rows: tuple[_Row, ...]


@dataclass(frozen=True)
class PublishedClaim:
    """A published figure: a metric `of` a setting `at`, in % or as a ratio against another setting."""

    row: str
    title: str
    of: str
    published: Published
    at: str
    against: str | None
    within: float
    tolerance: float
    note: str = ""
    plus: AddedMetric | None = None
    seeds: tuple[int, ...] = ()  # those of the record if none
    unlike: str = ""  # how the two settings differ beside what the claim is about
    lost: str = ""  # why it cannot be computed again

    @property
    def is_share(self) -> bool:
        """Return whether the claim is about a share, shown in percent."""
        return split_name(self.of)[0] in SHARES

    @property
    def is_change(self) -> bool:
        """Return whether the claim is about a change in percent against another setting."""
        return self.published.unit == "%" and not self.is_share

    @property
    def claim(self) -> Claim:
        """Return the claim that the figure is the published one, within the tolerance."""
        value, of = self.published.value, CHANGE if self.is_change else VALUE
        return Claim("", self.of, of=of, low=value - self.tolerance, high=value + self.tolerance)

    def shown(self, value: float) -> str:
        """Write a number of the claim's kind with one decimal more than the published one, and its unit."""
        sign = "+" if self.is_change else ""
        rounded = round(value, self.published.shown_decimals) + 0.0  # no negative zero
        return f"{rounded:{sign}.{self.published.shown_decimals}f} {self.published.unit}"

    @property
    def settings(self) -> tuple[str, ...]:
        """Return the settings that must be run; none where the figure cannot be computed again."""
        if self.lost:
            return ()
        added = self.plus.at if self.plus is not None else None
        return tuple(name for name in (self.at, self.against, added) if name is not None)

    @property
    def label(self) -> str:
        """Return what is claimed, in words."""
        words = metric_label(self.of) + (" change" if self.is_change else "")
        if self.plus is not None:
            words += f" + {metric_label(self.plus.of)} of {self.plus.at}"
        return f"{words} ({self.note})" if self.note else words


@dataclass(frozen=True)
class Statement:
    """A published statement that conditions make checkable."""

    row: str
    title: str
    statement: str
    conditions: tuple[StatementCondition, ...]
    note: str
    lost: str = ""  # why it cannot be checked

    @property
    def settings(self) -> tuple[str, ...]:
        """Return the settings that must be run, each once."""
        names = [name for condition in self.conditions for name in condition.settings]
        return tuple(dict.fromkeys(names))

    @property
    def label(self) -> str:
        """Return what is claimed, in words."""
        return self.statement


AnyClaim = PublishedClaim | Statement


def metric_label(of: str) -> str:
    """Return a metric in words."""
    base, slo_class = split_name(of)
    words = _LABELS.get(base, base)
    return f"{slo_class} {words}" if slo_class else words


def parse_claims(
    text: str, source: str, settings: Mapping[str, RunSetting]
) -> tuple[AnyClaim, ...]:
    """Read claims about settings from a YAML text; `source` names it in errors."""
    indented = text.replace("\n", "\n  ")
    try:
        file = _File.model_validate(read_mapping(f"rows:\n  {indented}", source))
    except ValidationError as error:
        raise ConfigError(f"{source}: {sentence(error)}") from None
    claims = tuple(_claims(file, source))
    named(settings, (name for claim in claims for name in claim.settings))
    return claims


def _claims(file: _File, source: str) -> Iterator[AnyClaim]:
    for row in file.rows:
        for entry in row.claims:
            lost, at = entry.lost or row.lost, entry.at or row.at or ""
            if not lost and not at and any(not c.at for c in entry.conditions or (entry,)):
                raise ConfigError(f"{source}: row {row.row}: a claim needs `at`, or `lost`")
            if entry.statement is not None:
                if bool(entry.conditions) == bool(lost):
                    raise ConfigError(
                        f"{source}: row {row.row}: a statement has either conditions or `lost`"
                    )
                conditions = tuple(
                    condition.model_copy(
                        update={
                            "at": condition.at or at,
                            "of": condition.of or _metric(row, entry, source),
                        }
                    )
                    for condition in entry.conditions
                )
                statement = entry.statement
                yield Statement(row.row, row.title, statement, conditions, entry.note, lost)
            else:
                yield _figure(row, entry, at, lost, source)


def _metric(row: _Row, entry: _Entry, source: str) -> str:
    metric = entry.of or row.of
    if metric is None:
        raise ConfigError(
            f"{source}: row {row.row}: a claim is `of` a metric; give it or the row's"
        )
    return metric


def _figure(row: _Row, entry: _Entry, at: str, lost: str, source: str) -> PublishedClaim:
    published = read_published(entry.published or "")
    against = entry.against or row.against
    claim = PublishedClaim(
        row.row,
        row.title,
        _metric(row, entry, source),
        published,
        at,
        None,
        entry.within,
        _tolerance(entry, published),
        entry.note,
        entry.plus,
        entry.seeds or row.seeds,
        entry.unlike,
        lost,
    )
    is_ratio = published.unit == "x" and claim.of != GAP
    if not claim.is_change and not is_ratio:
        return claim
    if against is None and not lost:
        kind = "change" if claim.is_change else "ratio"
        raise ConfigError(f"{source}: row {row.row}: {entry.of}: a {kind} needs `against`")
    return replace(claim, against=against)


def _tolerance(entry: _Entry, published: Published) -> float:
    if entry.tolerance is not None:
        return entry.tolerance
    if published.is_range:
        return entry.within + (published.high - published.low) / 2
    return POINTS if published.unit == "%" else SHARE_OF_NUMBER * abs(published.value)

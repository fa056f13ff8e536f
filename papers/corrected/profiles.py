"""Claims under two profiles, the reference's and that without its defects, and whether they survive."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from blis_jax.metrics.metric import ALL
from papers.record.claims import AnyClaim, PublishedClaim, metric_label
from papers.record.definition import PaperRecord
from papers.record.measures import Measurement, ttft_parts
from papers.record.published import Classifier, ReproducedClaim
from papers.record.quantities import Samples, column, mean_value, runs_of
from papers.record.runs import PaperRuns
from papers.record.settings import RunSetting
from sweeps.claims.words import (
    BOTH_SIDES,
    CRASHED,
    DIRECTION,
    LOST,
    NEEDS_DEFECTS,
    NEEDS_NONE,
    NEITHER,
    NO_FIGURES,
    ONE_SEED,
    SAYS_SO,
    SURVIVES,
    UNPUBLISHED,
)

VERDICTS = (
    SURVIVES, DIRECTION, NEEDS_DEFECTS, NEEDS_NONE, BOTH_SIDES, NEITHER, NO_FIGURES, UNPUBLISHED, LOST,
)  # fmt: skip
TURNED = (DIRECTION, NEEDS_DEFECTS, NEEDS_NONE)
CONCLUSION, NUMBER = "conclusion", "number"
_WHOLE, _SIDE, _NOT = 2, 1, 0  # how much of a claim holds: all of it, its direction, nothing


def without_defects(setting: RunSetting) -> RunSetting:
    """Return the same setting under the corrected profile, under the same name."""
    return replace(setting, made=setting.config.replace(corrected=True))


@dataclass(frozen=True)
class MovedFigure:
    """A setting's metric, the mean over the seeds, under both profiles; NaN where a run has none."""

    setting: str
    of: str
    exact: float
    corrected: float

    @property
    def log_ratio(self) -> float:
        """Return the logarithm of corrected ÷ exact; 0 where one of them is no positive number."""
        values = (self.exact, self.corrected)
        if not all(math.isfinite(value) and value > 0 for value in values):
            return 0.0
        return math.log(self.corrected / self.exact)

    @property
    def words(self) -> str:
        """Return a sentence with the metric, the setting and both numbers."""
        return (
            f"{metric_label(self.of)} of {self.setting}: {self.exact:.1f} to {self.corrected:.1f}"
        )


@dataclass(frozen=True)
class ClaimByProfile:
    """One claim under both profiles."""

    record: PaperRecord
    claim: AnyClaim
    published: str
    exact: str
    corrected: str
    shift: str  # from exact to corrected
    verdict: str  # one of VERDICTS
    reason: str
    moved: MovedFigure | None = None  # what moved most of all that the claim is about

    @property
    def kind(self) -> str:
        """Return whether the claim is a number of one setting, or a conclusion that compares runs."""
        claim = self.claim
        if isinstance(claim, PublishedClaim) and claim.against is None and claim.of != "gap":
            return NUMBER
        return CONCLUSION


def judged_profiles(
    record: PaperRecord, claims: Sequence[AnyClaim], exact: Samples, corrected: Samples
) -> list[ClaimByProfile]:
    """Judge every claim of a record under both profiles; samples by the settings' names."""
    settings = record.settings.values()
    missing = {setting.name: setting.missing for setting in settings if setting.missing}
    rows = [
        Classifier(samples, record.seeds, {}, missing).classified(claims)
        for samples in (exact, corrected)
    ]
    both = {"exact": exact, "corrected": corrected}
    return [
        _verdict(record, exact_row, corrected_row, both)
        for exact_row, corrected_row in zip(*rows, strict=True)
    ]


def _verdict(
    record: PaperRecord,
    exact: ReproducedClaim,
    corrected: ReproducedClaim,
    both: Mapping[str, Samples],
) -> ClaimByProfile:
    claim = exact.claim
    if (
        claim.lost
        or not exact.claim.settings
        or any(name not in both["exact"] for name in claim.settings)
    ):
        return ClaimByProfile(record, claim, exact.published, "", "", "", LOST, exact.reason)
    levels = [
        _level(record, row, samples)
        for row, samples in zip((exact, corrected), both.values(), strict=True)
    ]
    verdict = _weighed(claim, *levels)
    moved = _most_moved(claim, both["exact"], both["corrected"])
    shift = _shift(record, claim, both)
    reason = _reason(exact, corrected, verdict, moved)
    return ClaimByProfile(
        record,
        claim,
        exact.published,
        _shown(exact),
        _shown(corrected),
        shift,
        verdict,
        reason,
        moved,
    )


def _shown(row: ReproducedClaim) -> str:
    """Return a profile's result: a number, or whether a statement holds on all seeds together."""
    return (
        f"{row.ours} on {row.kind[:-5]} alone"
        if row.kind == ONE_SEED and row.ours == "true"
        else row.ours
    )


def _level(record: PaperRecord, row: ReproducedClaim, samples: Samples) -> int | None:
    """Return how much of the claim holds; None without a figure to compare it with."""
    claim = row.claim
    if not isinstance(claim, PublishedClaim):
        if row.ours not in ("true", "false"):
            return None
        return _WHOLE if row.kind == SAYS_SO else _NOT
    value = mean_value(runs_of(claim, samples).on(claim.seeds or record.seeds))
    if not math.isfinite(value) or math.isnan(claim.published.value):
        return None
    target = claim.published.value
    is_close = abs(value - target) <= claim.tolerance
    if not claim.is_change or claim.published.is_near:
        return _WHOLE if is_close else _NOT
    if value * target <= 0:
        return _NOT
    return _WHOLE if is_close else _SIDE


def _weighed(claim: AnyClaim, exact: int | None, corrected: int | None) -> str:
    if isinstance(claim, PublishedClaim) and math.isnan(claim.published.value):
        return UNPUBLISHED
    if corrected is None:
        return NO_FIGURES
    if exact == _WHOLE:
        return {_WHOLE: SURVIVES, _SIDE: DIRECTION, _NOT: NEEDS_DEFECTS}[corrected]
    if corrected == _WHOLE:
        return NEEDS_NONE
    return BOTH_SIDES if exact == corrected == _SIDE else NEITHER


def _shift(record: PaperRecord, claim: AnyClaim, both: Mapping[str, Samples]) -> str:
    """Return by how much a claim moves without the defects: in points for a change or share, else in percent."""
    if not isinstance(claim, PublishedClaim):
        return ""
    seeds = claim.seeds or record.seeds
    exact, corrected = (mean_value(runs_of(claim, samples).on(seeds)) for samples in both.values())
    if not (math.isfinite(exact) and math.isfinite(corrected)):
        return ""
    if exact == corrected:
        return "none"
    if claim.published.unit == "%":
        return f"{corrected - exact:+.1f} points"
    return f"{100 * (corrected / exact - 1):+.1f} %" if exact else ""


def _figures_of(claim: AnyClaim) -> list[tuple[str, str]]:
    """Return the settings and metrics that a claim is about."""
    if isinstance(claim, PublishedClaim):
        pairs = [(claim.at, claim.of), (claim.against, claim.of)]
        if claim.of == "gap":
            pairs = [(claim.at, f"ttft_p99_ms[{name}]") for name in ("sheddable", "critical")]
        if claim.plus is not None:
            pairs.append((claim.plus.at, claim.plus.of))
    else:
        pairs = [(name, each.of) for each in claim.conditions for name in each.settings]
    return [(setting, of) for setting, of in dict.fromkeys(pairs) if setting is not None]


def _most_moved(claim: AnyClaim, exact: Samples, corrected: Samples) -> MovedFigure | None:
    figures = [
        MovedFigure(
            name, of, *(float(column(samples[name], of).mean()) for samples in (exact, corrected))
        )
        for name, of in _figures_of(claim)
    ]
    return max(figures, key=lambda figure: abs(figure.log_ratio), default=None)


def _reason(
    exact: ReproducedClaim, corrected: ReproducedClaim, verdict: str, moved: MovedFigure | None
) -> str:
    if verdict == NO_FIGURES:
        return corrected.reason
    parts = []
    if not isinstance(exact.claim, PublishedClaim):
        parts.append(corrected.reason)
    elif exact.kind in (CRASHED, NO_FIGURES):
        parts.append(f"with the defects: {exact.reason}")
    if verdict in TURNED and moved is not None and moved.log_ratio:
        parts.append(f"moved most: {moved.words}")
    return "; ".join(dict.fromkeys(part for part in parts if part))


# --- what time to first token consists of ---------------------------------------------------------

NUM_SURPRISES = 5
PARTS = {  # by what a reader sees; the parts of a record that each adds up
    "waiting": ("queueing_time", "waiting"),
    "computing": ("prefill_compute", "chunk_overhead"),
    "lost by preemption": ("preempted_service",),
    "other": ("admission_delay", "routing_delay", "output_processing"),
}
COLUMNS = ("track", "row", "setting", "profile", "requests", *PARTS, "TTFT")
_PROFILES = ("exact", "corrected")
_WHICH = (ALL, "slowest")


def surprises(verdicts: Iterable[ClaimByProfile]) -> list[ClaimByProfile]:
    """Return the conclusions that the defects turn, greatest move first; one for each workload and size of memory."""
    turned = [
        verdict
        for verdict in verdicts
        if verdict.verdict in TURNED and verdict.kind == CONCLUSION and verdict.moved is not None
    ]
    turned.sort(key=lambda verdict: -_size(verdict))
    kept: list[ClaimByProfile] = []
    seen: set[tuple[str, str, int]] = set()
    for verdict in turned:
        assert verdict.moved is not None
        setting = verdict.record.settings[verdict.moved.setting]
        place = (verdict.record.name, setting.choice.name, setting.config.total_kv_blocks)
        if _size(verdict) > 0 and place not in seen and len(kept) < NUM_SURPRISES:
            kept.append(verdict)
            seen.add(place)
    return kept


def _size(verdict: ClaimByProfile) -> float:
    return abs(verdict.moved.log_ratio) if verdict.moved is not None else 0.0


def measurement() -> Measurement:
    """Return the measurement of the parts of TTFT, of all requests and of the slowest 5 %."""
    return ttft_parts((ALL,))


def parts_of(verdict: ClaimByProfile, runs: PaperRuns) -> list[dict[str, str]]:
    """Return the parts of TTFT, in ms, of the setting that moved most, by profile, for all requests and the slowest."""
    assert verdict.moved is not None
    record, measured = verdict.record, measurement()
    setting = record.settings[verdict.moved.setting]
    rows = []
    for profile, made in zip(_PROFILES, (setting, without_defects(setting)), strict=True):
        sample = runs.get([made], record.seeds, measured)[made.name]
        for which in _WHICH:
            values = {
                name: sum(float(sample.column(f"{ALL}/{which}/{part}").mean()) for part in parts)
                for name, parts in PARTS.items()
            }
            rows.append(
                {
                    "track": record.name,
                    "row": verdict.claim.row,
                    "setting": setting.name,
                    "profile": profile,
                    "requests": which,
                    **{name: f"{value:.1f}" for name, value in values.items()},
                    "TTFT": f"{sum(values.values()):.1f}",
                }
            )
    return rows

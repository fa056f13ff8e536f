"""The inputs of a surrogate, one column for each parameter with its range in the data; and the regions."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from blis_jax.errors import ConfigError, closest

FEWEST_POINTS = 16  # of each role of a dataset
UNLIMITED_SETTINGS = (  # settings in which 0 means no limit
    "long_prefill_token_threshold", "slo_prefill_critical", "slo_prefill_standard",
    "slo_prefill_sheddable",
)  # fmt: skip
Kind = Literal["real", "integer", "categorical"]


@dataclass(frozen=True)
class InputColumn:
    """One input; a value of a categorical input is held as its index in `categories`."""

    name: str
    kind: Kind
    low: float
    high: float
    is_log: bool = False
    categories: tuple[Any, ...] = ()
    unit: str = ""
    unlimited_at: float | None = None  # a value that means no limit, as 0 tokens a chunk does
    # Of a scorer's weight, which counts by its share of all weights: what the fixed ones add up to.
    fixed_weights: float | None = None

    def code(self, value: Any) -> float:
        """Return the number that stands for a value: itself, or the index of its category.

        Raises:
            ConfigError: the value is no number, or no category of the column.
        """
        if self.kind != "categorical":
            try:
                return float(value)
            except (TypeError, ValueError):
                raise ConfigError(f"{self.name}: {value!r} is not a number") from None
        for place, category in enumerate(self.categories):
            if value == category or str(value) == str(category):
                return float(place)
        allowed = ", ".join(map(repr, self.categories))
        raise ConfigError(f"{self.name}: got {value!r}, allowed is {allowed}")

    def value(self, code: float) -> Any:
        """Return the value that a number stands for."""
        if self.kind == "categorical":
            return self.categories[round(code)]
        return round(code) if self.kind == "integer" else float(code)


def codes_of(columns: Sequence[InputColumn], points: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """Return points given by name as numbers, `[point, column]`.

    Raises:
        ConfigError: an input is missing or unknown, or a value is not allowed.
    """
    names = [column.name for column in columns]
    codes = np.empty((len(points), len(columns)))
    for row, point in enumerate(points):
        for name in point:
            if name not in names:
                raise ConfigError(
                    f"point {row + 1}: {name!r} is no input of the surrogate, which has "
                    f"{', '.join(names)}{closest(str(name), names)}"
                )
        for place, column in enumerate(columns):
            if column.name not in point:
                raise ConfigError(f"point {row + 1}: {column.name} is missing; give every input")
            try:
                codes[row, place] = column.code(point[column.name])
            except ConfigError as error:
                raise ConfigError(f"point {row + 1}: {error}") from None
    return codes


def to_json(columns: Sequence[InputColumn]) -> str:
    """Write columns as a text for a file's attributes."""
    return json.dumps([dataclasses.asdict(column) for column in columns])


def from_json(text: str) -> tuple[InputColumn, ...]:
    """Read the columns from a text that `to_json` wrote."""
    entries = json.loads(text)
    return tuple(
        InputColumn(**{**entry, "categories": tuple(entry["categories"])}) for entry in entries
    )


# --- regions of a space that get intervals of their own -------------------------------------------

# An interval that holds at nine of ten points of a whole space may hold far more seldom at the few that
# anybody wants. The regions follow from a point and its predicted mean alone, so they are known before
# anything is simulated, and split conformal intervals hold within each of them.
#
# A split conformal interval at confidence 1 - a covers a new exchangeable point with probability at
# least 1 - a, whatever the network is like (Papadopoulos et al. 2002). Scores and factors are crepes'.
# Each region of the space has factors of its own, so the same holds within a region (Vovk 2012).


WHOLE = "whole space"
ELSEWHERE, BEST, BRANCH = REGIONS = ("elsewhere", "best quarter", "branch")
SHARE = 0.25  # of the points, with the lowest predicted means of the main output
FEWEST = 50  # calibration points of a region; one with fewer is calibrated with what is elsewhere


@dataclass(frozen=True)
class Regions:
    """The regions: the best quarter by the mean of one learned output, and the branch where a limit is off."""

    main: int  # place among the learned outputs
    threshold: float  # means up to it are in the best quarter, in the output's unit
    off_at: np.ndarray  # [column], the value that turns a limit off; NaN where there is none

    def of(self, inputs: Any, mean: Any) -> Any:
        """Return each point's index in REGIONS, from inputs and means of the learned outputs, in their units."""
        is_branch = (inputs == self.off_at).any(axis=1).astype(np.int32)
        is_best = (mean[:, self.main] <= self.threshold).astype(np.int32)
        return 2 * is_branch + (1 - is_branch) * is_best


def regions_of(
    columns: Sequence[InputColumn], main: int, inputs: np.ndarray, mean: np.ndarray
) -> Regions:
    """Choose the regions from predicted means of points that fill the space."""
    off = [np.nan if column.unlimited_at is None else column.unlimited_at for column in columns]
    off_at = np.array(off, np.float32)
    is_off = (inputs == off_at).any(axis=1)
    return Regions(main, float(np.quantile(mean[~is_off, main], SHARE)), off_at)


def calibrated_as(region: np.ndarray) -> np.ndarray:
    """Return the region by whose points each region is calibrated; the whole space for one with few points."""
    counts = np.bincount(region, minlength=len(REGIONS))
    return np.where(counts >= FEWEST, np.arange(len(REGIONS)), 0)


def scores(residuals: np.ndarray, sigmas: np.ndarray) -> np.ndarray:
    """Return sizes of residuals in sigmas, `[output, point]`, from `[point, output]`; infinite where one is NaN."""
    ratios = np.abs(residuals) / sigmas
    return np.asarray(np.where(np.isnan(ratios), np.inf, ratios).T)


def factors(scores: np.ndarray, confidence: float) -> np.ndarray:
    """Return how many sigmas an interval reaches to each side, `[output]`, as crepes' `predict_int` does.

    Infinite where there are too few calibration points for the confidence.
    """
    place = int((1 - confidence) * (scores.shape[1] + 1)) - 1
    if place < 0:
        return np.full(len(scores), np.inf)
    return np.asarray(-np.sort(-scores, axis=1)[:, place])


def factors_by_region(scores: np.ndarray, region: np.ndarray, confidence: float) -> np.ndarray:
    """Return `factors` for each region, `[region, output]`."""
    group = calibrated_as(region)
    of_point = group[region]
    return np.stack([factors(scores[:, of_point == place], confidence) for place in group])


# --- where a surrogate is not to be trusted -------------------------------------------------------

MOST_FAILED = 0.05  # predicted share of runs that do not come to their end
TOLERANCE = 1e-6  # of a range


@dataclass(frozen=True)
class Domain:
    """The range of each column in the data, and the greatest disagreement of the members within the data."""

    columns: tuple[InputColumn, ...]
    most_disagreement: float  # mean over outputs of the members' sd, in standard units

    def check(
        self, inputs: np.ndarray, epistemic: np.ndarray, failed: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return whether each point may be trusted, and the reason as text if not; empty text if it may."""
        is_inside = np.ones(len(inputs), bool)
        reasons = np.full(len(inputs), "", object)

        def refuse(is_refused: np.ndarray, words: Sequence[str] | str) -> None:
            for row in np.flatnonzero(is_refused).tolist():
                word = words if isinstance(words, str) else words[row]
                reasons[row] = f"{reasons[row]}; {word}" if reasons[row] else word
            is_inside[is_refused] = False

        for place, column in enumerate(self.columns):
            x = inputs[:, place]
            slack = TOLERANCE * (column.high - column.low)
            is_number = np.isfinite(x)
            refuse(~is_number, f"{column.name} is not a number")
            for is_off, end, side in (
                (x < column.low - slack, column.low, "below"),
                (x > column.high + slack, column.high, "above"),
            ):
                rows = is_number & is_off
                if rows.any():
                    words = [
                        f"{column.name} {value:g} is {side} the data, which end at {end:g}"
                        for value in x
                    ]
                    refuse(rows, words)
            if column.kind == "categorical":
                refuse(is_number & (x != np.round(x)), f"{column.name} is between two categories")
        disagreement = epistemic.mean(axis=1)
        is_odd = ~(disagreement <= self.most_disagreement)
        if is_odd.any():
            times = disagreement / self.most_disagreement
            refuse(is_odd, [
                f"the members of the ensemble disagree {value:.1f} times as much as is allowed"
                for value in times
            ])  # fmt: skip
        if failed is not None:
            refuse(failed > MOST_FAILED, [
                f"about {100 * value:.0f} % of the runs do not finish" for value in failed
            ])  # fmt: skip
        return is_inside, reasons

    def to_json(self) -> str:
        """Write `most_disagreement` as a text."""
        return json.dumps(self.most_disagreement)

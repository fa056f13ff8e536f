"""Where a surrogate should not be trusted: outside its data, or where its members disagree."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from surrogate.columns import InputColumn

MOST_FAILED = 0.05  # predicted share of runs that do not come to their end
TOLERANCE = 1e-6  # of a range


@dataclass(frozen=True)
class Domain:
    """The box of the data, and the most that members disagree within it."""

    columns: tuple[InputColumn, ...]
    most_disagreement: float  # mean over outputs of the members' sd, in standard units

    def check(
        self, inputs: np.ndarray, epistemic: np.ndarray, failed: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Whether each point may be trusted, and in words why not; empty where it may."""
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
        """The number that the columns do not have, as a text."""
        return json.dumps(self.most_disagreement)

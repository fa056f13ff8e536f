"""Hypotheses as the evaluator sees them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from blis_jax.errors import ConfigError
from sweeps.promote.promotion import Files

if TYPE_CHECKING:
    from sweeps.promote.hypotheses.document import MetricPath, TransferHypothesis

NAME = "hypotheses.yaml"
BASELINE, CONTROL, TREATMENT = "baseline", "control", "treatment"
ARMS = (BASELINE, CONTROL, TREATMENT)
LOWER, HIGHER, SAME = "lower", "higher", "same"


@dataclass(frozen=True)
class PromotedHypothesis:
    """One hypothesis; `direction` is what the subject does to the metric against the baseline."""

    id: str
    track: str  # A, B, C
    metric: MetricPath
    direction: str  # LOWER, HIGHER, or SAME within the tolerance
    tolerance_percent: float
    arms: tuple[str, ...]
    scene: str  # the folder of its reports
    whole: Mapping[str, Any]  # as the file has it

    @property
    def subject(self) -> str:
        """The arm that is compared with the baseline: the treatment, or where it is left out the control."""
        return CONTROL if CONTROL in self.arms and TREATMENT not in self.arms else TREATMENT

    @property
    def references(self) -> tuple[str, ...]:
        """What it is compared with."""
        return (BASELINE,) if self.subject == CONTROL else (BASELINE, CONTROL)

    @property
    def is_equivalence(self) -> bool:
        """Whether it says that nothing changes."""
        return self.direction == SAME


def hypotheses_path(files: Files) -> str:
    """The path of the hypotheses among files."""
    for path in files:
        if path.rpartition("/")[2] == NAME:
            return path
    raise ConfigError(f"there is no {NAME}; run the stage hypothesise")


def hypotheses_of(files: Files) -> list[PromotedHypothesis]:
    """All hypotheses.

    Raises:
        ConfigError: there are none, or a field of one is missing or not allowed.
    """
    from sweeps.promote.hypotheses.document import parse_hypotheses

    path = hypotheses_path(files)
    return [_promoted(one) for one in parse_hypotheses(files[path], path).hypotheses]


def _promoted(one: TransferHypothesis) -> PromotedHypothesis:
    return PromotedHypothesis(
        id=one.id,
        track=one.track,
        metric=one.metric,
        direction=one.expected.direction,
        tolerance_percent=one.expected.tolerance,
        arms=tuple(one.arms),
        scene=one.scene,
        whole=one.model_dump(mode="json", exclude_none=True),
    )

"""What a hypothesis of a promotion is: its fields, and which pairs of words are legal."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from blis_jax.errors import ConfigError
from blis_jax.files.strict_yaml import read_mapping, sentence
from sweeps.ledger.rows.vocabulary import (
    CATEGORIES,
    DETERMINISTIC,
    TYPES_OF,
    VERIFICATION,
)

HYPOTHESES, PAGE = "hypotheses.yaml", "hypotheses.md"
ARMS = ("baseline", "control", "treatment")
RUNS = 3
Text = Annotated[str, Field(min_length=1, pattern=r"\S")]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class MetricPath(_Part):
    """A figure of a benchmark report."""

    path: Text
    statistic: Text
    unit: Text
    better: Literal["lower", "higher"]


class ExpectedChange(_Part):
    """What the treatment does to the metric against the baseline."""

    direction: Literal["lower", "higher", "same"]
    magnitude_sim: dict[str, float] | str  # change in %, with its interval, or "not measured"
    tolerance: Annotated[float, Field(gt=0, le=100)]  # %, within which values count as the same


class OfferedTraffic(_Part):
    """The requests of a test; lengths in tokens."""

    name: Text  # workload of the simulator
    rate: Annotated[float, Field(gt=0)]  # requests/s
    requests: Annotated[int, Field(ge=1)]
    prompt: dict[str, float]  # mean, std_dev, min, max of what is not shared
    output: dict[str, float]
    prefix_tokens: int = 0
    prefix_groups: int = 1
    turns: int = 1
    classes: tuple[dict[str, Any], ...] = ()  # name, share, objective, priority, ttft_header_ms


class OperatingPoint(_Part):
    """The load as a share of what the simulated cluster can do."""

    saturation_rate: Annotated[float, Field(gt=0)]  # requests/s, of the baseline
    share: Annotated[float, Field(gt=0)]
    measured_by: Text


class ProfileChoice(_Part):
    """The form of the benchmark profile, or why there can be none."""

    harness: Literal["inference-perf", "guidellm", "priority-mix"] | None = None
    reason: str = ""

    @model_validator(mode="after")
    def _one_of_both(self) -> ProfileChoice:
        if (self.harness is None) != bool(self.reason.strip()):
            raise ValueError("give either a harness, or the reason why there can be no profile")
        return self


class TransferHypothesis(_Part):
    """One hypothesis about a real cluster."""

    id: Annotated[str, Field(pattern=r"^[ABC]-[a-z0-9.-]+$")]
    track: Literal["A", "B", "C"]
    statement: Text
    family: Text
    vvuq: Text
    type: Text
    metric: MetricPath
    expected: ExpectedChange
    arms: tuple[Text, ...] = ARMS
    scene: Text  # hypotheses on the same traffic under the same stress share their runs
    workload: OfferedTraffic
    operating_point: OperatingPoint
    setup: dict[str, Any] = Field(
        default_factory=dict
    )  # scenario keys that make the stress, for all arms
    profile: ProfileChoice
    preconditions: tuple[Text, ...]
    runs: Annotated[int, Field(ge=3)] = RUNS
    mechanism: Text
    diagnostic: Text  # what it indicates if it fails
    origin: Text

    @model_validator(mode="after")
    def _legal(self) -> TransferHypothesis:
        if self.family not in TYPES_OF or self.type not in TYPES_OF[self.family]:
            raise ValueError(f"family {self.family!r} does not go with type {self.type!r}")
        if self.vvuq not in CATEGORIES or (self.vvuq == VERIFICATION) != (
            self.type == DETERMINISTIC
        ):
            raise ValueError(f"category {self.vvuq!r} does not go with type {self.type!r}")
        if not self.id.startswith(self.track):
            raise ValueError(f"the id begins with the track {self.track}")
        return self


class NotTransferred(_Part):
    """A confirmed row of the ledger that is no hypothesis about a cluster, and why."""

    row: Text
    reason: Text


class HypothesisDocument(_Part):
    """`hypotheses.yaml`."""

    strategy: Text
    baseline: Text
    target: Text
    inventory: Text  # repository@commit of the baseline scenarios
    hypotheses: Annotated[tuple[TransferHypothesis, ...], Field(min_length=1)]
    not_transferred: tuple[NotTransferred, ...] = ()

    @model_validator(mode="after")
    def _distinct(self) -> HypothesisDocument:
        names = [one.id for one in self.hypotheses]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"two hypotheses have the id {twice}")
        return self


def parse_hypotheses(text: str, source: str = HYPOTHESES) -> HypothesisDocument:
    """The checked document.

    Raises:
        ConfigError: a field is missing, unknown, empty or not allowed.
    """
    try:
        return HypothesisDocument.model_validate(read_mapping(text, source))
    except ValidationError as error:
        problem = sentence(error).removeprefix("Value error, ")
        raise ConfigError(f"{source}: {problem}") from None

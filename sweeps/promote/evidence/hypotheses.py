"""Define hypotheses about a cluster: their fields, the allowed values, figures of reports, and baseline scenarios."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from importlib import resources
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from blis_jax.errors import ConfigError
from blis_jax.files.strict_yaml import read_mapping, sentence
from blis_jax.workload.spec import WorkloadSpec, parse_spec
from sweeps.claims.grammar import CHANGE, Claim, beyond
from sweeps.claims.words import CATEGORIES, DETERMINISTIC, TYPES_OF, VERIFICATION
from sweeps.promote.evidence.reports import CLASSES, FIGURES
from sweeps.promote.evidence.runs import FEWEST_RUNS
from sweeps.promote.promotion import ARMS, BASELINE, CONTROL, TREATMENT, Files, file_named
from sweeps.promote.store import checked, data_file
from sweeps.strategies.parts import ClosedPart

HYPOTHESES, PAGE = "hypotheses.yaml", "hypotheses.md"
LOWER, HIGHER, SAME = "lower", "higher", "same"
Text = Annotated[str, Field(min_length=1, pattern=r"\S")]


class MetricPath(ClosedPart):
    """Name a figure of a benchmark report, and the direction that counts as better."""

    path: Text
    statistic: Text
    unit: Text
    better: Literal["lower", "higher"]


class ExpectedChange(ClosedPart):
    """Hold the expected change of the metric from the baseline to the treatment."""

    direction: Literal["lower", "higher", "same"]
    magnitude_sim: dict[str, float] | str  # change in %, with its interval, or "not measured"
    tolerance: Annotated[float, Field(gt=0, le=100)]  # %, within which values count as the same


class OfferedTraffic(ClosedPart):
    """Describe the requests of a test; lengths in tokens."""

    name: Text  # workload of the simulator
    rate: Annotated[float, Field(gt=0)]  # requests/s
    requests: Annotated[int, Field(ge=1)]
    prompt: dict[str, float]  # mean, std_dev, min, max of what is not shared
    output: dict[str, float]
    prefix_tokens: int = 0
    prefix_groups: int = 1
    turns: int = 1
    classes: tuple[dict[str, Any], ...] = ()  # name, share, objective, priority, ttft_header_ms


class OperatingPoint(ClosedPart):
    """Hold the load as a share of the rate at which the simulated baseline saturates."""

    saturation_rate: Annotated[float, Field(gt=0)]  # requests/s, of the baseline
    share: Annotated[float, Field(gt=0)]
    measured_by: Text


class ProfileChoice(ClosedPart):
    """Hold the harness of the benchmark profile, or the reason why there can be no profile."""

    harness: Literal["inference-perf", "guidellm", "priority-mix"] | None = None
    reason: str = ""

    @model_validator(mode="after")
    def _one_of_both(self) -> ProfileChoice:
        if (self.harness is None) != bool(self.reason.strip()):
            raise ValueError("give either a harness, or the reason why there can be no profile")
        return self


class TransferHypothesis(ClosedPart):
    """Hold one hypothesis about a real cluster."""

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
    pods: dict[str, int] = Field(default_factory=dict)  # by role, where prompts move between them
    setup: dict[str, Any] = Field(default_factory=dict)  # scenario keys of the stress, for all arms
    picker: str = ""  # change of every arm's picker, as Map C has it
    knobs: dict[str, float] = Field(default_factory=dict)  # of the profile, changed by the stress
    profile: ProfileChoice
    preconditions: tuple[Text, ...]
    runs: Annotated[int, Field(ge=3)] = FEWEST_RUNS
    mechanism: Text
    diagnostic: Text  # what it indicates if it fails
    origin: Text

    @property
    def direction(self) -> str:
        """Return the expected direction of the change from the baseline: lower, higher, or same (within tolerance)."""
        return self.expected.direction

    @property
    def subject(self) -> str:
        """Return the arm compared with the baseline: the treatment, or the control where there is no treatment."""
        return CONTROL if CONTROL in self.arms and TREATMENT not in self.arms else TREATMENT

    @property
    def references(self) -> tuple[str, ...]:
        """Return the arms that the subject is compared with."""
        return (BASELINE,) if self.subject == CONTROL else (BASELINE, CONTROL)

    @property
    def simulated_scene(self) -> str:
        """Return the name of the scene to simulate; scenarios of track C with the same workload and pods share one."""
        pods = "".join(f"-{role}-{count}" for role, count in sorted(self.pods.items()))
        return f"workload-{self.workload.name}{pods}" if self.track == "C" else self.scene

    @property
    def claim(self) -> Claim:
        """Return the claim about the metric's change in % against the baseline."""
        if self.is_equivalence:
            limit = self.expected.tolerance
            return Claim("", self.metric.path, of=CHANGE, low=-limit, high=limit)
        return replace(beyond(self.metric.path, self.direction == HIGHER), of=CHANGE)

    @property
    def is_equivalence(self) -> bool:
        """Return whether the hypothesis expects no change."""
        return self.direction == SAME

    def plain(self) -> dict[str, Any]:
        """Return the hypothesis as plain data for the file."""
        return self.model_dump(mode="json", exclude_none=True)

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


class NotTransferred(ClosedPart):
    """Hold the id of a confirmed ledger row that becomes no hypothesis about a cluster, and the reason."""

    row: Text
    reason: Text


class HypothesisDocument(ClosedPart):
    """Hold the content of `hypotheses.yaml`."""

    strategy: Text
    baseline: Text
    target: Text
    inventory: Text  # repository@commit of the baseline scenarios
    hypotheses: Annotated[tuple[TransferHypothesis, ...], Field(min_length=1)]
    not_transferred: tuple[NotTransferred, ...] = ()

    @model_validator(mode="after")
    def _distinct(self) -> HypothesisDocument:
        names = [hypothesis.id for hypothesis in self.hypotheses]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"two hypotheses have the id {twice}")
        return self


def hypotheses_path(files: Files) -> str:
    """Return the path of `hypotheses.yaml` among files."""
    path = file_named(files, HYPOTHESES)
    if path is None:
        raise ConfigError(f"there is no {HYPOTHESES}; run the stage hypothesise")
    return path


def hypotheses_of(files: Files) -> tuple[TransferHypothesis, ...]:
    """Return all hypotheses among files.

    Raises:
        ConfigError: the file is missing, or a field in it is missing or not allowed.
    """
    path = hypotheses_path(files)
    return parse_hypotheses(files[path], path).hypotheses


@functools.lru_cache(maxsize=8)  # every rule of a gate reads the same text
def parse_hypotheses(text: str, source: str = HYPOTHESES) -> HypothesisDocument:
    """Parse and check the text of `hypotheses.yaml`.

    Raises:
        ConfigError: a field is missing, unknown, empty or not allowed.
    """
    try:
        return HypothesisDocument.model_validate(read_mapping(text, source))
    except ValidationError as error:
        problem = sentence(error).removeprefix("Value error, ")
        raise ConfigError(f"{source}: {problem}") from None


GOODPUT = "summary.goodput"  # made from the rows of priority-mix
_BY_METRIC = {figure.metric: figure for figure in FIGURES if figure.metric}
_BY_METRIC["tokens_per_sec"] = _BY_METRIC["output_tokens_per_s"]


def metric_path(metric: str) -> tuple[MetricPath, str] | None:
    """Return a metric's place in a report, and the metric in words; None where no report has the metric."""
    match = re.fullmatch(r"(ttft|e2e|tpot)_(mean|p\d+)_ms(?:\[([a-z]+)\])?", metric)
    figure = _BY_METRIC.get(match[1] if match else metric)
    statistic, slo_class = (match[2], match[3]) if match else ("mean", None)
    if figure is not None and (match or not figure.by_class):
        if slo_class and statistic not in ("mean", "p50", "p95", "p99"):
            return None  # priority-mix has no others
        path = f"{CLASSES}.{slo_class}.{figure.by_class}" if slo_class else figure.path
        words = f"{statistic} of the {figure.words}" if match else figure.words
        words += f" of {slo_class} requests" if slo_class else ""
        unit, better = figure.units[-1], figure.better
        return MetricPath(path=path, statistic=statistic, unit=unit, better=better), words
    if metric in ("goodput_rps", "attainment"):
        goodput = MetricPath(path=GOODPUT, statistic="mean", unit="fraction", better="higher")
        return goodput, "share of demanded requests that are served in time"
    return None


def known_metric(metric: str) -> tuple[MetricPath, str]:
    """Return a metric's place in a report, and the metric in words; refuse a metric that no report has.

    Raises:
        ConfigError: no report has the metric.
    """
    known = metric_path(metric)
    if known is None:
        raise ConfigError(
            f"metric {metric} is in no benchmark report; use ttft_p99_ms or tokens_per_sec"
        )
    return known


class BaselineScenario(ClosedPart):
    """Describe a scenario file of the benchmark: the harness and profile that it names, and how it is simulated."""

    name: str  # path below the folder, without .yaml
    harness: str
    profile: str
    workload: str  # in sweeps/workloads; stands for the profile in the simulator
    instead: str = ""  # what is simulated where the profile cannot be
    no_arms: str = ""  # why the arms cannot be stood up there
    # of its pods: empty for none, else who works
    roles: Literal["", "decode", "prefill-decode"] = ""
    # where prompts move
    pods: dict[Literal["prefill", "decode"], int] = Field(default_factory=dict)

    @property
    def experiment(self) -> str:
        """Return the name of the experiment that runs the arms on this scenario."""
        return "-".join(("track-c", self.harness, self.profile, *filter(None, [self.roles])))

    @property
    def left_out(self) -> str:
        """Return why no experiment runs the arms on this scenario; empty if one does."""
        return self.no_arms or self.instead


class Inventory(ClosedPart):
    """Hold all scenarios of the pinned commit of the benchmark's repository."""

    repository: str
    commit: Annotated[str, Field(pattern="^[0-9a-f]{40}$")]
    folder: str
    scenarios: tuple[BaselineScenario, ...]


@functools.cache
def inventory() -> Inventory:
    """Return the pinned inventory of scenarios.

    Raises:
        ConfigError: the file does not have the form of an inventory.
    """
    return checked(Inventory, data_file("evidence/data/scenarios.yaml"), "scenarios.yaml")


@functools.cache
def scenario_workload(name: str) -> WorkloadSpec:
    """Return the workload that stands for a scenario's profile in the simulator."""
    file = resources.files("sweeps") / "workloads" / f"{name}.yaml"
    return parse_spec(file.read_text(encoding="utf-8"), f"{name}.yaml")

"""The YAML workload specification (version "2" of the reference), parsed and checked.

Every key of the reference's format is known here, also those that no generator of ours supports
yet. `measure` is an addition of ours: the reference refuses a file that has it. What BLIS's later
revision reads differently is in `blis_jax.workload.revised`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import ValidationError, field_validator, model_validator

from blis_jax.errors import ConfigError, ConfigWarning, choices, closest
from blis_jax.files.input_files import check_regular
from blis_jax.files.strict_yaml import LAW_TYPES, read_mapping, sentence
from blis_jax.workload.inference_perf import InferencePerfSpec, first_clients
from blis_jax.workload.lengths.laws import (
    ConstantLaw,
    Count,
    EmpiricalLaw,
    LengthLaw,
    NonNegative,
    Positive,
    Strict,
    Whole,
    problem_at,
)
from blis_jax.workload.versions import FIRST_REVISION, REVISED, REVISIONS, upgraded

TEXTS = ("id", "tenant_id", "model", "prefix_group", "adapter")  # keys whose values are names
DEFAULT_PREFIX_LENGTH = 50  # tokens, the reference's default
LEAST_GAMMA_SHAPE = 0.01  # the reference's: a cv of 10
# cv by law: of weibull the reference's; of gamma, 1/cv² must be a number
CV_RANGES = {"weibull": (0.01, 10.4), "gamma": (1e-150, math.inf)}


class ArrivalSpec(Strict):
    """Law of the gaps between a client's requests; cv is their coefficient of variation."""

    process: Literal["poisson", "gamma", "weibull", "constant"]
    cv: Positive | None = None

    @model_validator(mode="after")
    def _solvable(self) -> ArrivalSpec:
        self.check_cv()
        return self

    def check_cv(self) -> None:
        """Refuses a cv for which the law has no shape."""
        low, high = CV_RANGES.get(self.process, (0.0, math.inf))
        if self.cv is not None and not low <= self.cv <= high:
            most = f" to {high:g}" if high < math.inf else " or more"
            raise problem_at(
                ["cv"], f"got {self.cv:g}, allowed for {self.process} is {low:g}{most}"
            )


class NetworkSpec(Strict):
    """Path between client and cluster; shifts client-side latencies only."""

    rtt_ms: NonNegative
    bandwidth_mbps: NonNegative = 0.0  # 0: unlimited


class ActiveWindow(Strict):
    """A span in which the client sends requests."""

    start_us: Count
    end_us: Count  # exclusive

    @model_validator(mode="after")
    def _ordered(self) -> ActiveWindow:
        if self.end_us < self.start_us:
            raise problem_at(
                ["end_us"], f"got {self.end_us}, allowed is start_us = {self.start_us} or more"
            )
        return self


class LifecycleSpec(Strict):
    """Spans outside of which the client is silent; without any it never sends."""

    windows: tuple[ActiveWindow, ...]


class MultiTurnSpec(Strict):
    """Sessions: each arrival of the client begins one and is its first round."""

    max_rounds: Count  # every session has as many; 0: the client never sends
    think_time_us: Count = 0  # the next round also waits 1 us for each output token
    context_growth: Literal["", "accumulate"] = ""  # accumulate: prompts begin with earlier rounds


class ReasoningSpec(Strict):
    """Share of reasoning tokens, which changes nothing, and sessions."""

    reason_ratio_distribution: LengthLaw | None = None
    multi_turn: MultiTurnSpec | None = None


class MultimodalSpec(Strict):
    """Token counts of the parts of a multimodal prompt."""

    text_distribution: LengthLaw | None = None
    image_distribution: LengthLaw | None = None
    image_count_distribution: LengthLaw | None = None
    audio_distribution: LengthLaw | None = None
    audio_count_distribution: LengthLaw | None = None
    video_distribution: LengthLaw | None = None
    video_count_distribution: LengthLaw | None = None


class ClientSpec(Strict):
    """One source of requests."""

    # whether sessions take no shared prefix and go on outside the windows and past the horizon
    sessions_are_bare: ClassVar[bool] = True

    id: str = ""
    tenant_id: str = ""
    slo_class: Literal["", "critical", "standard", "sheddable", "batch", "background"] = ""
    model: str = ""
    rate_fraction: Positive  # normalised over clients
    arrival: ArrivalSpec
    input_distribution: LengthLaw
    output_distribution: LengthLaw
    prefix_group: str = ""
    prefix_length: Count = 0  # tokens; 0: DEFAULT_PREFIX_LENGTH
    streaming: bool = False
    network: NetworkSpec | None = None
    lifecycle: LifecycleSpec | None = None
    multimodal: MultimodalSpec | None = None
    reasoning: ReasoningSpec | None = None

    @property
    def multi_turn(self) -> MultiTurnSpec | None:
        """The client's kind of sessions; None if its requests are single-turn, or none are sent."""
        turns = self.reasoning.multi_turn if self.reasoning else None
        return turns if turns and turns.max_rounds else None

    @property
    def is_silent(self) -> bool:
        """Whether the client never sends: its sessions have no round, or no window is ever open."""
        turns = self.reasoning.multi_turn if self.reasoning else None
        if turns:
            return not turns.max_rounds
        return self.lifecycle is not None and not any(
            window.start_us < window.end_us for window in self.lifecycle.windows
        )

    @property
    def has_bare_sessions(self) -> bool:
        """Whether the client sends sessions to which prefix, windows and horizon do not apply."""
        return self.sessions_are_bare and self.multi_turn is not None

    @property
    def has_single_session(self) -> bool:
        """Whether the client begins one session only."""
        return False

    @property
    def active_windows(self) -> tuple[ActiveWindow, ...]:
        """Spans in which the client sends; none if always. Bare sessions ignore them."""
        if self.is_silent:
            return (ActiveWindow(start_us=0, end_us=0),)
        return self.lifecycle.windows if self.lifecycle and not self.has_bare_sessions else ()

    @model_validator(mode="after")
    def _positive_lengths(self) -> ClientSpec:
        for name in ("input_distribution", "output_distribution"):
            law = getattr(self, name)
            if isinstance(law, ConstantLaw) and law.params.value < 1:
                raise problem_at(
                    [name, "params", "value"], f"got {law.params.value}, allowed is 1 token or more"
                )
            if isinstance(law, EmpiricalLaw) and min(law.params) < 1:
                raise problem_at(
                    [name, "params"],
                    f"has token count {min(law.params)}, allowed is 1 token or more",
                )
        return self


class ServeGenSpec(Strict):
    """Recorded ServeGen data to take clients from."""

    path: str
    span_start: Count = 0
    span_end: Count = 0


class MeasureSpec(Strict):
    """Spans at the ends of the arrivals that are simulated but left out of the metrics (ours)."""

    warm_up_s: NonNegative = 0.0
    cool_down_s: NonNegative = 0.0


class WorkloadSpec(Strict):
    """A whole workload: an aggregate rate shared out among clients."""

    revision: ClassVar[str] = FIRST_REVISION  # of BLIS, whose rules apply
    law_types: ClassVar[tuple[str, ...]] = LAW_TYPES

    version: Literal["2"]
    seed: Whole = 0
    category: Literal["", "language", "multimodal", "reasoning"] = ""
    aggregate_rate: Positive | None = None  # requests/s
    num_requests: Count = 0  # 0: no limit but the horizon
    horizon: Count = 0  # microseconds, exclusive; 0: none
    clients: tuple[ClientSpec, ...] = ()
    servegen_data: ServeGenSpec | None = None
    inference_perf: InferencePerfSpec | None = None
    measure: MeasureSpec = MeasureSpec()

    @field_validator("version", mode="before")
    @classmethod
    def _version_two(cls, version: Any) -> Any:
        if isinstance(version, bool) or str(version) != "2":
            raise ValueError(f"got {version!r}, allowed is a text such as '2'")
        return "2"

    @model_validator(mode="after")
    def _has_source(self) -> WorkloadSpec:
        if self.servegen_data is None and self.inference_perf is None:
            if self.aggregate_rate is None:
                raise problem_at(
                    ["aggregate_rate"], "missing, but it must be given (requests per second)"
                )
            if not self.clients:
                raise problem_at(["clients"], "no client is given, allowed is one or more")
        return self

    @property
    def slo_classes(self) -> tuple[str, ...]:
        """The classes of its clients, `default` for none, in order of their first use."""
        return tuple(dict.fromkeys(client.slo_class or "default" for client in self.clients))

    def content(self) -> dict[str, Any]:
        """Everything that its requests depend on besides the seed, as plain data."""
        rules = {} if self.revision == FIRST_REVISION else {"revision": self.revision}
        return rules | self.model_dump(mode="json")

    def about(self) -> dict[str, Any]:
        """What results say of it, as plain data: everything but defaults."""
        return self.model_dump(mode="json", exclude_defaults=True)


def parse_spec(
    text: str, source: str = "workload specification", revision: str = FIRST_REVISION
) -> WorkloadSpec:
    """Parse and check a YAML text; `source` names it in errors, `revision` the BLIS whose rules apply.

    Files of version 1 are read as version 2, with a ConfigWarning where names have changed.
    """
    kind = _spec_class(revision)
    data = upgraded(read_mapping(text, source, TEXTS), source)
    try:
        return _with_clients(kind.model_validate(data))
    except ValidationError as error:
        raise ConfigError(f"{source}: {sentence(error, kind.law_types)}") from None
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None


def _spec_class(revision: str) -> type[WorkloadSpec]:
    if revision not in REVISIONS:
        raise ConfigError(
            f"revision {revision!r} is unknown, allowed is one of {', '.join(REVISIONS)}"
            f"{closest(revision, REVISIONS)}"
        )
    if revision != REVISED:
        return WorkloadSpec
    from blis_jax.workload.revised.spec import RevisedWorkload

    return RevisedWorkload


def _with_clients(spec: WorkloadSpec) -> WorkloadSpec:
    """The same workload with the clients that the first revision makes of `inference_perf`."""
    if spec.revision != FIRST_REVISION or spec.inference_perf is None or spec.clients:
        return spec
    mean_rate, clients = first_clients(spec.inference_perf)
    rate = mean_rate if spec.aggregate_rate is None else spec.aggregate_rate
    changes = {"clients": clients, "aggregate_rate": rate, "inference_perf": None}
    return override(spec, **changes)


def load_spec(path: str | Path, revision: str = FIRST_REVISION) -> WorkloadSpec:
    """Read a workload file.

    Args:
        path: a YAML file in BLIS's format, version 1 or 2.
        revision: the BLIS whose keys and rules apply, `blis-2026-02` or `blis-2026-08`.

    Raises:
        ConfigError: the file cannot be read, a key is unknown, or a value is impossible; the sentence has the
            path of the key.
    """
    try:
        text = check_regular(Path(path)).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a UTF-8 text"
        raise ConfigError(f"{path}: cannot be read ({reason}); give a YAML workload file") from None
    return parse_spec(text, str(path), revision)


def override(spec: WorkloadSpec, **changes: Any) -> WorkloadSpec:
    """The same workload with top-level keys replaced, checked again.

    Raises:
        ConfigError: a key is unknown, or its value is impossible.
    """
    try:
        with warnings.catch_warnings():  # what was to be said of the file has been said
            warnings.simplefilter("ignore", ConfigWarning)
            return type(spec).model_validate({**spec.model_dump(), **changes})
    except ValidationError as error:
        raise ConfigError(sentence(error, spec.law_types)) from None


def list_builtin() -> tuple[str, ...]:
    """Names of the workloads that come with the package."""
    folder = resources.files("blis_jax") / "data" / "workloads"
    return tuple(sorted(file.name[:-5] for file in folder.iterdir() if file.name.endswith(".yaml")))


def load_builtin(name: str, revision: str = FIRST_REVISION) -> WorkloadSpec:
    """A workload that comes with the package, such as `mixed`; `list_builtin` has the names.

    `revision` says which BLIS's rules apply.

    Raises:
        ConfigError: there is no such workload.
    """
    if name not in list_builtin():
        raise ConfigError(f"workload {name!r} is unknown; {choices(name, list_builtin())}")
    file = resources.files("blis_jax") / "data" / "workloads" / f"{name}.yaml"
    return parse_spec(file.read_text(encoding="utf-8"), f"{name}.yaml", revision)


def is_gamma_too_bursty(cv: float | None) -> bool:
    """Whether the reference draws exponential gaps for a gamma law of this coefficient."""
    return cv is not None and 1.0 / (cv * cv) < LEAST_GAMMA_SHAPE


def prefix_lengths(clients: Iterable[ClientSpec]) -> dict[str, int]:
    """Tokens of each prefix group's one prefix, given by the group's first client."""
    lengths: dict[str, int] = {}
    for client in clients:
        if client.prefix_group:
            lengths.setdefault(client.prefix_group, client.prefix_length or DEFAULT_PREFIX_LENGTH)
    return lengths

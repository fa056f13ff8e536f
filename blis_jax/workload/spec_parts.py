"""The YAML workload specification (version "2" of the reference): its parts, with checks; and latencies at the client.

Every key of the reference's format is accepted here, even if no generator of this package supports it yet. `measure` is
an addition of this package: the reference refuses a file that has this key. Differences in BLIS's later revision are in
`blis_jax.workload.revised_spec`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, field_validator, model_validator

from blis_jax.files.strict_yaml import LAW_TYPES
from blis_jax.workload.inference_perf import InferencePerfSpec
from blis_jax.workload.length_laws import (
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
from blis_jax.workload.servegen.keys import ServeGenSpec
from blis_jax.workload.source import FIRST_REVISION

if TYPE_CHECKING:
    from jaxtyping import Float, Int


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
        """Refuse a coefficient of variation for which the law has no shape."""
        low, high = CV_RANGES.get(self.process, (0.0, math.inf))
        if self.cv is not None and not low <= self.cv <= high:
            most = f" to {high:g}" if high < math.inf else " or more"
            raise problem_at(
                ["cv"], f"got {self.cv:g}, allowed for {self.process} is {low:g}{most}"
            )


class NetworkSpec(Strict):
    """The network path between client and cluster, which affects only latencies measured at the client."""

    rtt_ms: NonNegative = 0.0
    bandwidth_mbps: NonNegative = 0.0  # 0: unlimited


class ActiveWindow(Strict):
    """A span in which the client sends requests."""

    start_us: Count = 0
    end_us: Count  # exclusive

    @model_validator(mode="after")
    def _ordered(self) -> ActiveWindow:
        if self.end_us < self.start_us:
            raise problem_at(
                ["end_us"], f"got {self.end_us}, allowed is start_us = {self.start_us} or more"
            )
        return self


class LifecycleSpec(Strict):
    """The client's active spans, outside of which it is silent; without any span it never sends."""

    windows: tuple[ActiveWindow, ...]


class MultiTurnSpec(Strict):
    """Sessions: each arrival of the client begins a session and is its first round."""

    max_rounds: Count  # every session has as many; 0: the client never sends
    think_time_us: Count = 0  # the next round also waits 1 us for each output token
    context_growth: Literal["", "accumulate"] = ""  # accumulate: prompts begin with earlier rounds


class ReasoningSpec(Strict):
    """The share of reasoning tokens, which has no effect, and sessions."""

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

    @property
    def modalities(self) -> tuple[tuple[LengthLaw | None, LengthLaw | None], ...]:
        """Return, for images, recordings and videos, the law of their number and the law of their tokens."""
        return (
            (self.image_count_distribution, self.image_distribution),
            (self.audio_count_distribution, self.audio_distribution),
            (self.video_count_distribution, self.video_distribution),
        )


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
    prefix_length: Count = 0  # tokens; 0: distribution.DEFAULT_PREFIX_LENGTH
    streaming: bool = False
    network: NetworkSpec | None = None
    lifecycle: LifecycleSpec | None = None
    multimodal: MultimodalSpec | None = None
    reasoning: ReasoningSpec | None = None

    @property
    def multi_turn(self) -> MultiTurnSpec | None:
        """Return the specification of the client's sessions; None if it sends single-turn requests or none at all."""
        turns = self.reasoning.multi_turn if self.reasoning else None
        return turns if turns and turns.max_rounds else None

    @property
    def is_silent(self) -> bool:
        """Return whether the client never sends, because its sessions have no rounds or all its windows are empty."""
        turns = self.reasoning.multi_turn if self.reasoning else None
        if turns:
            return not turns.max_rounds
        return self.lifecycle is not None and not any(
            window.start_us < window.end_us for window in self.lifecycle.windows
        )

    @property
    def has_bare_sessions(self) -> bool:
        """Return whether the client sends sessions to which prefix, windows and horizon do not apply."""
        return self.sessions_are_bare and self.multi_turn is not None

    @property
    def has_single_session(self) -> bool:
        """Return False: in this form of the file no client is limited to one session."""
        return False

    @property
    def active_windows(self) -> tuple[ActiveWindow, ...]:
        """Return the spans in which the client sends; none if it always sends. Bare sessions ignore these spans."""
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
            if name == "input_distribution" and isinstance(law, EmpiricalLaw) and 0 in law.params:
                raise problem_at(
                    [name, "params"],
                    "has token count 0, allowed is 1 token or more",
                )
        return self


class MeasureSpec(Strict):
    """Spans at the beginning and end of the arrivals that are simulated but left out of the metrics (not in BLIS)."""

    warm_up_s: NonNegative = 0.0
    cool_down_s: NonNegative = 0.0


class AdapterPopularity(Strict):
    """LoRA adapters over which requests of clients and cohorts without an adapter are spread (not in BLIS)."""

    names: Annotated[tuple[str, ...], Field(min_length=1)]  # the most popular one first
    zipf: NonNegative = 1.0  # popularity falls as 1 / place^zipf; 0: all alike
    weights: tuple[Positive, ...] = ()  # of the names, in place of that law

    @property
    def shares(self) -> tuple[float, ...]:
        """Return each adapter's share of the requests."""
        places = range(1, len(self.names) + 1)
        weights = self.weights or tuple(place**-self.zipf for place in places)
        return tuple(weight / math.fsum(weights) for weight in weights)

    @model_validator(mode="after")
    def _consistent(self) -> AdapterPopularity:
        if not all(self.names) or len(set(self.names)) < len(self.names):
            raise problem_at(["names"], "a name is empty or given twice; give each adapter once")
        if self.weights and "zipf" in self.model_fields_set:
            raise problem_at(
                ["weights"], "given beside zipf, allowed is one of them; leave one out"
            )
        if self.weights and len(self.weights) != len(self.names):
            raise problem_at(
                ["weights"],
                f"got {len(self.weights)}, allowed is one for each of the {len(self.names)} names",
            )
        return self


class ClassTargets(Strict):
    """Latency bounds in ms within which a request counts as good; 0 for none."""

    ttft_ms: NonNegative = 0.0
    itl_ms: NonNegative = 0.0
    e2e_ms: NonNegative = 0.0


class WorkloadSpec(Strict):
    """A whole workload: clients that share an aggregate rate."""

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
    def _version_two(cls, version: object) -> object:
        if isinstance(version, bool) or str(version) != "2":
            raise ValueError(f"got {version!r}, allowed is a text such as '2'")
        return "2"

    @model_validator(mode="after")
    def _has_source(self) -> WorkloadSpec:
        if self.inference_perf is None and self.aggregate_rate is None:
            raise problem_at(
                ["aggregate_rate"], "missing, but it must be given (requests per second)"
            )
        if not self.clients and self.servegen_data is None and self.inference_perf is None:
            raise problem_at(["clients"], "no client is given, allowed is one or more")
        return self

    @property
    def slo_classes(self) -> tuple[str, ...]:
        """Return the SLO classes of the clients, `default` for none, in order of their first use."""
        return tuple(dict.fromkeys(client.slo_class or "default" for client in self.clients))

    @property
    def waits(self) -> bool:
        """Return False: under February's rules all requests are known before the run."""
        return False

    @property
    def has_rate(self) -> bool:
        """Return whether some requests arrive at a rate."""
        return True

    @property
    def has_fixed_rates(self) -> bool:
        """Return False: under February's rules aggregate_rate sets the rate of all clients."""
        return False

    def content(self) -> dict[str, Any]:
        """Return everything on which the requests depend besides the seed, as plain data."""
        rules = {} if self.revision == FIRST_REVISION else {"revision": self.revision}
        return rules | self.model_dump(mode="json")

    def about(self) -> dict[str, Any]:
        """Return the description of the workload that results contain: all values except defaults, as plain data."""
        return self.model_dump(mode="json", exclude_defaults=True)


BITS_PER_TOKEN = 32


def client_ttft_us(
    ttft_us: Int[np.ndarray, " request"],
    input_len: Int[np.ndarray, " request"],
    network: NetworkSpec,
) -> Float[np.ndarray, " request"]:
    """Return the time to first token at the client: the cluster's, plus a round trip and the prompt's transfer."""
    round_trip_us = network.rtt_ms * 1000.0
    return ttft_us + round_trip_us + _transfer_us(input_len, network)


def client_e2e_us(
    e2e_us: Int[np.ndarray, " request"],
    input_len: Int[np.ndarray, " request"],
    output_len: Int[np.ndarray, " request"],
    network: NetworkSpec,
) -> Float[np.ndarray, " request"]:
    """Return the end-to-end latency at the client: the cluster's, plus a round trip and the transfers of prompt and
    output.
    """
    return client_ttft_us(e2e_us, input_len, network) + _transfer_us(output_len, network)


def _transfer_us(
    num_tokens: Int[np.ndarray, " request"], network: NetworkSpec
) -> Float[np.ndarray, " request"]:
    if network.bandwidth_mbps <= 0.0:
        return np.zeros(num_tokens.shape)
    bits = num_tokens.astype(np.float64) * BITS_PER_TOKEN
    return bits / (network.bandwidth_mbps * 1e6) * 1e6

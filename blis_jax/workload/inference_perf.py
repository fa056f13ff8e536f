"""Workloads in the compact form of inference-perf, and the clients that BLIS derives from them.

Every user of every shared system prompt becomes a client. BLIS's two revisions make different clients: the first gives
all clients one rate, with the stages as windows; the second gives each stage its own clients, which follow the stage's
numbers exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from blis_jax.errors import ConfigError
from blis_jax.workload.length_laws import Count, Positive, Strict, Whole

US_PER_S = 1_000_000
FIRST_CHAT = {"max_rounds": 5, "think_time_us": 500_000, "context_growth": "accumulate"}
MOST_CLIENTS = 1_000_000  # the reference's limit
MOST_OF_CLIENT = 10_000_000  # requests of one client, the reference's limit


class StageSpec(Strict):
    """A stage: a span of time with a constant rate."""

    rate: Positive  # requests/s
    duration: Annotated[Whole, Field(ge=1)]  # s


class SharedPrefixSpec(Strict):
    """Clients of an inference-perf workload with shared system prompts."""

    num_unique_system_prompts: Annotated[Whole, Field(ge=1)]
    num_users_per_system_prompt: Annotated[Whole, Field(ge=1)]
    system_prompt_len: Count
    question_len: Count
    output_len: Count
    enable_multi_turn_chat: bool = False


class InferencePerfSpec(Strict):
    """A workload in the compact form of inference-perf."""

    stages: Annotated[tuple[StageSpec, ...], Field(min_length=1)]
    shared_prefix: SharedPrefixSpec

    @property
    def num_users(self) -> int:
        """Return the number of clients of one stage."""
        shared = self.shared_prefix
        return shared.num_unique_system_prompts * shared.num_users_per_system_prompt

    @property
    def is_chat(self) -> bool:
        """Return whether users hold multi-turn conversations."""
        return self.shared_prefix.enable_multi_turn_chat


@dataclass(frozen=True)
class ExactCount:
    """A pace with an exact number of requests, whose gaps are scaled to fill the span."""

    count: int
    duration_us: int


@dataclass(frozen=True)
class OwnRate:
    """A pace with exponential gaps, at a rate that other clients' shares do not change."""

    rate_us: float  # requests per microsecond


Pace = ExactCount | OwnRate  # in place of a client's arrival law and its share of the rate


class PacedClient(NamedTuple):
    """A client as a document of the YAML format, and its pace; None for the pace of its arrival law."""

    document: dict[str, Any]
    pace: Pace | None


def check_clients(workload: InferencePerfSpec) -> None:
    """Refuse a workload from which the revised form derives no clients.

    Raises:
        ConfigError: there are too many users, or too few or too many requests for each.
    """
    _check_size(workload)
    for index in range(len(workload.stages)):
        if _is_counted(workload):
            _counts(workload, index)


def first_clients(workload: InferencePerfSpec) -> tuple[float, list[dict[str, Any]]]:
    """Return the mean rate in requests/s and the clients of BLIS's first revision, as YAML documents."""
    _check_size(workload)
    windows, spans = _windows(workload), [stage.duration for stage in workload.stages]
    weighted = 0.0
    for stage in workload.stages:
        weighted += stage.rate * stage.duration
    more: dict[str, Any] = {"slo_class": "batch", "rate_fraction": 1.0 / workload.num_users}
    if len(windows) > 1:
        more["lifecycle"] = {"windows": windows}
    if workload.is_chat:
        more["reasoning"] = {"reason_ratio_distribution": _constant(0), "multi_turn": FIRST_CHAT}
    return weighted / sum(spans), [user | more for user in _users(workload)]


def revised_clients(workload: InferencePerfSpec) -> tuple[float, list[PacedClient]]:
    """Return the sum of the stages' rates in requests/s, and the clients of BLIS's revised form."""
    _check_size(workload)
    rate = 0.0
    clients: list[PacedClient] = []
    for index, window in enumerate(_windows(workload)):
        rate += workload.stages[index].rate
        clients += _stage_clients(workload, index, window)
    return rate, clients


def _stage_clients(
    workload: InferencePerfSpec, index: int, window: dict[str, int]
) -> Iterator[PacedClient]:
    """Return the clients of one stage; the only stage of a workload has no window."""
    stage, is_only = workload.stages[index], len(workload.stages) == 1
    share = 1.0 / workload.num_users if is_only else 1.0
    more: dict[str, Any] = {"slo_class": "standard", "rate_fraction": share}
    if not is_only:
        more["lifecycle"] = {"windows": [window]}
    counts = _counts(workload, index) if _is_counted(workload) else []
    for number, user in enumerate(_users(workload, least=0)):
        document = user | more
        pace: Pace | None = None
        if not is_only:
            document["id"] = f"stage-{index}-{user['id']}"
            pace = OwnRate(stage.rate / workload.num_users / 1e6)
        if workload.is_chat:
            document["reasoning"] = _chat(stage.rate, workload.num_users, counts[number])
        elif is_only:
            pace = ExactCount(counts[number], stage.duration * US_PER_S)
        yield PacedClient(document, pace)


def _users(workload: InferencePerfSpec, least: int = 1) -> Iterator[dict[str, Any]]:
    """Yield the client keys common to every stage and revision, prompt by prompt; lengths are raised to `least`."""
    shared = workload.shared_prefix
    for prompt in range(shared.num_unique_system_prompts):
        for user in range(shared.num_users_per_system_prompt):
            yield {
                "id": f"prompt-{prompt}-user-{user}",
                "tenant_id": f"prompt-{prompt}",
                "arrival": {"process": "poisson"},
                "input_distribution": _constant(max(shared.question_len, least)),
                "output_distribution": _constant(max(shared.output_len, least)),
                "prefix_group": f"prompt-{prompt}",
                "prefix_length": shared.system_prompt_len,
            }


def _constant(tokens: int) -> dict[str, Any]:
    """Return a constant length law; the reference raises a length of 0 to 1."""
    return {"type": "constant", "params": {"value": tokens}}


def _chat(rate: float, num_users: int, rounds: int) -> dict[str, Any]:
    """Return the client keys of one conversation, paced so that all users together send at `rate`."""
    turns = {
        "max_rounds": rounds,
        "think_time_us": int(num_users / rate * 1e6),
        "single_session": True,
    }
    return {"reason_ratio_distribution": _constant(0), "multi_turn": turns}


def _is_counted(workload: InferencePerfSpec) -> bool:
    """Return whether users have exact numbers of requests instead of a rate."""
    return workload.is_chat or len(workload.stages) == 1


def _counts(workload: InferencePerfSpec, index: int) -> list[int]:
    """Return the stage's requests divided evenly among the users; the first users get the remainder."""
    stage, num_users = workload.stages[index], workload.num_users
    total = int(min(stage.rate * stage.duration, 2.0**63))
    each, more = divmod(total, num_users)
    place = f"inference_perf.stages[{index}]"
    if not each:
        raise ConfigError(
            f"{place}: rate {stage.rate:g} for {stage.duration} s makes {total} requests, allowed is "
            f"one or more for each of the {num_users} users; raise rate or duration"
        )
    limit = min(MOST_OF_CLIENT, stage.duration * US_PER_S)
    if not workload.is_chat and each + (more > 0) > limit:
        raise ConfigError(
            f"{place}: rate {stage.rate:g} makes {each + (more > 0)} requests of one user, allowed are "
            f"{limit}; lower rate or duration, or give more users"
        )
    return [each + (user < more) for user in range(num_users)]


def _windows(workload: InferencePerfSpec) -> list[dict[str, int]]:
    """Return the stages' spans, one after the other."""
    windows, start_us = [], 0
    for stage in workload.stages:
        end_us = start_us + stage.duration * US_PER_S
        windows.append({"start_us": start_us, "end_us": end_us})
        start_us = end_us
    return windows


def _check_size(workload: InferencePerfSpec) -> None:
    total = workload.num_users * len(workload.stages)
    if total > MOST_CLIENTS:
        raise ConfigError(
            f"inference_perf.shared_prefix: {total} clients, users of all stages, allowed are "
            f"{MOST_CLIENTS}; lower num_unique_system_prompts or num_users_per_system_prompt"
        )

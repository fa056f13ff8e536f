"""What is simulated: a server or cluster and its load; and the cells of a file of measured runs that it fills."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from blis_jax.errors import ConfigError, shortened

FITTED, PUBLISHED = "fitted", "trained-physics"
MODELS = (FITTED, PUBLISHED)  # of step times
MOST_REQUESTS = 200_000  # of one run; more take minutes


@dataclass(frozen=True)
class ServerPool:
    """Equal instances with a role of their own.

    Raises:
        ConfigError: a number is below 1, or the role is unknown.
    """

    role: str  # `prefill` or `decode`
    count: int
    tp: int

    def __post_init__(self) -> None:
        if min(self.count, self.tp) < 1 or self.role not in ("prefill", "decode"):
            raise ConfigError(
                f"a pool of {self.count} {self.role!r} instances with TP {self.tp}: give at least one "
                "instance and one GPU, and the role prefill or decode"
            )


@dataclass(frozen=True)
class RealServer:
    """Equal instances of a model, or pools of them; a 0 stands for the value that follows from the model.

    Raises:
        ConfigError: a number is below 1, or pools do not have both roles.
    """

    model: str
    hardware: str  # a name of `data/hardware.yaml`
    tp: int = 1
    num_instances: int = 1
    max_num_running_reqs: int = 256
    max_num_scheduled_tokens: int = 2048
    total_kv_blocks: int = 0  # 0: what fits into memory
    memory_utilization: float = 0.9
    data_parallel: int = 1
    model_config: str = ""  # a `config.json`; empty: the shipped description
    # in place of `num_instances`; `tp` is then that of decode, for what is learned of a deployment
    pools: tuple[ServerPool, ...] = ()
    kv_bytes: float = 0.0  # of one number in the KV cache; 0: that of the activations
    variant: str = ""  # software and sharing of experts, for what is learned of a deployment

    def __post_init__(self) -> None:
        for name in ("tp", "num_instances", "max_num_running_reqs", "max_num_scheduled_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.pools and {pool.role for pool in self.pools} != {"prefill", "decode"}:
            raise ConfigError("pools must have the roles prefill and decode, both")


@dataclass(frozen=True)
class LoadStage:
    """A span of constant arrivals."""

    rate: float  # requests/s
    duration_s: float


@dataclass(frozen=True)
class StagedLoad:
    """Stages one after the other; users send the same prompts again and again, in turn.

    Raises:
        ConfigError: a number is not above 0, or there are too many requests.
    """

    stages: tuple[LoadStage, ...]
    num_users: int  # different prompts
    prompt: int  # tokens, a system prompt included
    output: int  # tokens

    def __post_init__(self) -> None:
        _check_above_zero(
            rate=min((stage.rate for stage in self.stages), default=0),
            duration=min((stage.duration_s for stage in self.stages), default=0),
            users=self.num_users,
            prompt=self.prompt,
            output=self.output,
        )
        _check_count(sum(int(stage.rate * stage.duration_s) for stage in self.stages))


@dataclass(frozen=True)
class ClosedLoad:
    """A constant number of requests at once: an answered user sends the next request. All prompts differ.

    Raises:
        ConfigError: a number is not above 0, or there are too many requests.
    """

    concurrency: int
    prompt: int  # tokens
    output: int  # tokens
    rounds: int = 10  # requests for each of those at once
    shortest: float = 1.0  # lengths are drawn evenly from this share of the given ones up to these
    first_is_cached: bool = False  # the prompt of the first request was sent before

    def __post_init__(self) -> None:
        _check_above_zero(
            concurrency=self.concurrency, prompt=self.prompt, output=self.output, rounds=self.rounds
        )
        if not 0 < self.shortest <= 1:
            raise ConfigError(
                f"shortest must be above 0 and at most 1, got {self.shortest:g}; 1 makes all lengths equal"
            )
        _check_count(self.concurrency * self.rounds)


@dataclass(frozen=True)
class Scene:
    """The server and load to simulate for one run."""

    server: RealServer
    load: StagedLoad | ClosedLoad


def _check_above_zero(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise ConfigError(f"{name} must be above 0, got {value:g}")


def _check_count(number: int) -> None:
    if not 1 <= number <= MOST_REQUESTS:
        raise ConfigError(f"the load makes {number} requests, allowed are 1 to {MOST_REQUESTS}")


# --- what a file asks for -------------------------------------------------------------------------

GPUS = {  # names of GPUs in the collections
    "H100": "H100",
    "A100-80GB": "A100-80",
    "A100-80": "A100-80",
    "A100-SXM": "A100-SXM",
    "L40S": "L40S",
    "h100_sxm": "H100",
    "h200_sxm": "H200",
    "b200_sxm": "B200",
    "b300_sxm": "B300",
    "a100_sxm": "A100-SXM",
    "l40s": "L40S",
    "H200": "H200",
    "B200": "B200",
    "B300": "B300",
}

LARGEST = 1_000_000  # of the whole numbers in a row: more GPUs, requests or tokens than anyone has

Row = Mapping[str, Any]


class AskedCell(NamedTuple):
    """A figure that a file wants."""

    row: int  # of the file, from 0
    column: str
    figure: str  # such as `ttft_mean`
    stage: int | None = None  # of a staged load; None: all requests


@dataclass(frozen=True)
class Unit:
    """Rows that one simulation answers."""

    rows: tuple[int, ...]
    scene: Scene | None  # None: they cannot be predicted
    cells: tuple[AskedCell, ...] = ()
    problem: str = ""  # why, one sentence


def unit_for_each(
    rows: Sequence[Row], scene_of: Callable[[Row], Scene], figures: Mapping[str, str]
) -> list[Unit]:
    """Return a unit for each row; `figures` are the columns that it fills, with what stands in them."""
    units = []
    for place, row in enumerate(rows):
        try:
            cells = tuple(AskedCell(place, column, name) for column, name in figures.items())
            units.append(Unit((place,), scene_of(row), cells))
        except ConfigError as error:
            units.append(Unit((place,), None, problem=str(error)))
    return units


def gpu_name(text: Any) -> str:
    """Return the name under which the GPU is described here.

    Raises:
        ConfigError: it is not known.
    """
    if str(text) not in GPUS:
        raise ConfigError(f"GPU {text!r} has no description; known are {', '.join(GPUS)}")
    return GPUS[str(text)]


def whole(row: Row, column: str, usual: int | None = None) -> int:
    """Read a whole number of the row; `usual` where its cell is empty.

    Raises:
        ConfigError: it is no whole number, or it is empty and there is no usual one.
    """
    number = _number(row, column, usual, "a whole number")
    if number != int(number):
        raise ConfigError(f"{column} is {row[column]!r}, it must be a whole number")
    if abs(number) > LARGEST:
        raise ConfigError(f"{column} is {number:g}, it must be at most {LARGEST:,}")
    return int(number)


def share(row: Row, column: str, usual: float) -> float:
    """Read a share of the row, above 0 up to 1; `usual` where its cell is empty.

    Raises:
        ConfigError: it is no such number.
    """
    number = _number(row, column, usual, "a number")
    if not 0 < number <= 1:
        raise ConfigError(f"{column} is {number:g}, it must be above 0 and at most 1")
    return number


def _number(row: Row, column: str, usual: float | None, what: str) -> float:
    value = row.get(column)
    is_empty = value is None or value != value or value == ""
    if is_empty and usual is not None:
        return usual
    try:
        number = math.nan if isinstance(value, bool | np.bool_) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        said = "is empty" if is_empty else f"is {shortened(value)}"
        raise ConfigError(f"{column} {said}, it must be {what}")
    return number

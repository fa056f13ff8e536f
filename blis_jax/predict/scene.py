"""A measured run as a simulation: a server, and the load that was put on it."""

from __future__ import annotations

from dataclasses import dataclass

from blis_jax.errors import ConfigError

MOST_REQUESTS = 200_000  # of one run; more take minutes


@dataclass(frozen=True)
class ServerPool:
    """Equal instances with a role of their own.

    Raises:
        ConfigError: a number is below 1, or the role is none.
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
    """Equal instances of a model, or pools of them; 0 stands for what follows from the model.

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
        if self.pools and {one.role for one in self.pools} != {"prefill", "decode"}:
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
            rate=min((one.rate for one in self.stages), default=0),
            duration=min((one.duration_s for one in self.stages), default=0),
            users=self.num_users,
            prompt=self.prompt,
            output=self.output,
        )
        _check_count(sum(int(one.rate * one.duration_s) for one in self.stages))


@dataclass(frozen=True)
class ClosedLoad:
    """So many requests at once all the time; whoever is answered sends the next one. All prompts differ.

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
    """What is simulated for one run."""

    server: RealServer
    load: StagedLoad | ClosedLoad


def _check_above_zero(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise ConfigError(f"{name} must be above 0, got {value:g}")


def _check_count(number: int) -> None:
    if not 1 <= number <= MOST_REQUESTS:
        raise ConfigError(f"the load makes {number} requests, allowed are 1 to {MOST_REQUESTS}")

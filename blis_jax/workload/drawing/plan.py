"""Compile a specification into the inputs of a draw on the device: static sizes and a pytree of numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.errors import ConfigError, UnsupportedError
from blis_jax.workload.distribution import prefix_lengths, refuse_endless
from blis_jax.workload.drawing import samplers
from blis_jax.workload.drawing.plan_params import (
    Multimodal,
    PlanParams,
    Traffic,
    expected_arrivals,
    expected_requests,
    gap_law,
    last_end,
    most_sessions,
    params_of,
    rounds_of,
    tenants_of,
    traffic_of,
)
from blis_jax.workload.drawing.samplers import longest_length
from blis_jax.workload.source import FIRST_REVISION
from blis_jax.workload.table import NEVER_US, WorkloadNames

if TYPE_CHECKING:
    from blis_jax.workload.spec import ArrivalSpec, WorkloadSpec

__all__ = [
    "ClientShape",
    "DrawPlan",
    "PlanParams",
    "PlanShape",
    "compile_plan",
    "longest_node",
    "params_for",
]

NO_GROUP = -1  # a client without a shared prefix
SIGMAS = 6.0  # draws beyond a client's expected share, in standard deviations of that share
SPARE_DRAWS = 8  # for the skewness that the normal approximation ignores
SIZE_STEP = 32  # sizes are rounded up to it or an eighth of their octave: near ones compile once
MOST_DRAWS = 2**22
MOST_PATH_NODES = 2**24  # of all rows together


@dataclass(frozen=True)
class ClientShape:
    """The static part of one client: its laws and its number of draws."""

    gap_law: str
    input_law: str
    output_law: str
    num_proposals: int  # arrivals: requests, or sessions of several
    num_windows: int  # 0: always active
    prefix_group: int  # NO_GROUP: none
    session_rounds: int = 0  # 0: single-turn requests
    is_accumulating: bool = False  # prompts begin with all earlier rounds of the session

    @property
    def num_rounds(self) -> int:
        """Return the number of requests per arrival."""
        return max(self.session_rounds, 1)

    @property
    def num_draws(self) -> int:
        """Return the number of requests in all proposals, one for each round."""
        return self.num_proposals * self.num_rounds


@dataclass(frozen=True)
class PlanShape:
    """The static part of a draw; hashable, so it can be a static argument of `jax.jit`."""

    clients: tuple[ClientShape, ...]
    num_requests: int  # rows of the table
    is_capped: bool  # rows are cut to num_requests; else the horizon alone ends the workload
    block_size: int  # tokens

    @property
    def num_groups(self) -> int:
        """Return the number of prefix groups, counting "no group" as one."""
        return 1 + max(client.prefix_group for client in self.clients)

    @property
    def has_sessions(self) -> bool:
        """Return whether some client's requests come in sessions."""
        return any(client.session_rounds > 0 for client in self.clients)

    @property
    def accumulated_rounds(self) -> int:
        """Return the most rounds over which a session in the table accumulates its context, at least 1."""
        rounds = [client.num_rounds for client in self.clients if client.is_accumulating]
        return max(min(max(rounds, default=1), self.num_requests), 1)

    @property
    def has_shared_outputs(self) -> bool:
        """Return whether a later prompt may contain an earlier request's output."""
        return self.accumulated_rounds > 1

    @property
    def num_session_nodes(self) -> int:
        """Return the greatest number of session nodes: two for each row with an earlier round, for that round's prompt
        and output.
        """
        fewest_first_rounds = -(-self.num_requests // self.accumulated_rounds)
        return 2 * (self.num_requests - fewest_first_rounds)

    @property
    def num_nodes(self) -> int:
        """Return the number of node rows of the table; 1 if no content is shared."""
        return max(self.num_groups + self.num_session_nodes, 1)

    @property
    def path_depth(self) -> int:
        """Return the greatest number of nodes on one request's path."""
        return max(2 * (self.accumulated_rounds - 1), 1)

    @property
    def num_draws(self) -> int:
        """Return the number of requests in all proposals of all clients."""
        return sum(client.num_draws for client in self.clients)

    @property
    def index_bits(self) -> int:
        """Return the number of bits that the index of any draw needs."""
        return self.num_draws.bit_length()

    @property
    def latest_arrival_us(self) -> int:
        """Return the first time in µs that does not fit into 62 bits together with a draw's index."""
        return int(2 ** (62 - self.index_bits))

    def session_limit(self, client: ClientShape) -> int | None:
        """Return the greatest number of sessions that a client begins; None without a limit."""
        has_limit = self.is_capped and client.session_rounds > 0
        return most_sessions(client.session_rounds, self.num_requests) if has_limit else None


@dataclass(frozen=True)
class DrawPlan:
    """The static shape and the numbers that `draw` needs, and the texts of integer codes."""

    shape: PlanShape
    params: PlanParams
    names: WorkloadNames


def compile_plan(
    spec: WorkloadSpec,
    *,
    num_requests: int | None = None,
    block_size: int = 16,
    headroom: float = 1.0,
) -> DrawPlan:
    """Return a plan with the sizes of the draws for a specification; `headroom` multiplies the draws per client.

    `num_requests` replaces the specification's; 0 means that the horizon alone ends the workload.
    """
    _check_supported(spec)
    wanted = spec.num_requests if num_requests is None else num_requests
    if wanted < 0 or block_size < 1 or not headroom >= 1.0:
        raise ConfigError(
            f"num_requests {wanted}, block_size {block_size}, headroom {headroom:g}: allowed are "
            f"at least 0, 1 and 1"
        )
    refuse_endless(wanted, spec.horizon)
    num_rows, num_gaps = _sizes(spec, wanted)
    groups = {name: index for index, name in enumerate(prefix_lengths(spec.clients))}
    params = params_of(spec)
    clients = tuple(
        ClientShape(
            gap_law=gap_law(client.arrival),
            input_law=numbers.input_law.name,
            output_law=client.output_distribution.type,
            num_proposals=_num_proposals(client.arrival, gaps * headroom),
            num_windows=len(client.active_windows),
            prefix_group=groups.get("" if client.multi_turn else client.prefix_group, NO_GROUP),
            session_rounds=rounds_of(client) if client.multi_turn else 0,
            is_accumulating=bool(client.multi_turn and client.multi_turn.context_growth),
        )
        for client, numbers, gaps in zip(spec.clients, params.clients, num_gaps, strict=True)
    )
    shape = PlanShape(clients, num_rows, wanted > 0, block_size)
    if shape.num_draws > MOST_DRAWS:
        raise ConfigError(
            f"the workload needs {shape.num_draws} draws, allowed are {MOST_DRAWS}; "
            f"lower num_requests or horizon"
        )
    if shape.num_requests * shape.path_depth > MOST_PATH_NODES:
        raise ConfigError(
            f"max_rounds: {shape.num_requests} requests in sessions of {shape.accumulated_rounds} "
            f"rounds share up to {shape.path_depth} contents each, allowed are "
            f"{MOST_PATH_NODES // shape.num_requests}; lower max_rounds or num_requests"
        )
    _check_clock(spec, shape)
    _check_items(shape, params)
    return DrawPlan(shape, params, WorkloadNames(tenants_of(spec), tuple(groups)))


def params_for(shape: PlanShape, spec: WorkloadSpec) -> PlanParams:
    """Return the numbers of another specification with the same laws, for a draw that is already compiled."""
    other = compile_plan(spec, num_requests=shape.num_requests, block_size=shape.block_size).shape
    for index, (compiled, wanted) in enumerate(zip(shape.clients, other.clients, strict=False)):
        for part in _LAWS:
            if getattr(compiled, part) != getattr(wanted, part):
                raise ConfigError(
                    f"clients[{index}]: {part} is {getattr(wanted, part)!r}, but the draw was "
                    f"compiled for {getattr(compiled, part)!r}; compile a plan of its own"
                )
    if len(shape.clients) != len(other.clients):
        raise ConfigError(
            f"clients: {len(other.clients)} are given, but the draw was compiled for "
            f"{len(shape.clients)}; compile a plan of its own"
        )
    return params_of(spec)


_LAWS = (
    "gap_law",
    "input_law",
    "output_law",
    "num_windows",
    "prefix_group",
    "session_rounds",
    "is_accumulating",
)


def longest_node(plan: DrawPlan, chance: float = 1e-6) -> int:
    """Return a number of blocks that a shared content of one drawn table exceeds with at most the probability `chance`.

    It is 0 if no content is shared. The probability is above 0 only for laws without a largest value; the table's
    `node_blocks` have the true lengths.
    """
    shape, block_size = plan.shape, plan.shape.block_size
    longest = int(np.max(plan.params.prefix_len, initial=0)) // block_size
    each = chance / (2 * shape.num_requests)
    for client, numbers in zip(shape.clients, plan.params.clients, strict=True):
        if client.is_accumulating and shape.has_shared_outputs:
            for law in (numbers.input_law, numbers.output_law):
                assert not isinstance(law, Multimodal)  # sessions have none
                longest = max(longest, -(-longest_length(law, each) // block_size))
    return longest


def prefix_blocks(plan: DrawPlan) -> int:
    """Return the blocks of all prefixes that groups of clients share."""
    return int(np.sum(plan.params.prefix_len // plan.shape.block_size))


def expected_output(plan: DrawPlan) -> float:
    """Return the mean of the output tokens of a request, by the clients' laws; infinite if a law has none."""
    clients = list(zip(plan.shape.clients, plan.params.clients, strict=True))
    shares = [float(numbers.rate_fraction) * client.num_rounds for client, numbers in clients]
    tokens = [numbers.output_law.expected() for _, numbers in clients]
    return float(np.average(tokens, weights=shares))


def longest_request(plan: DrawPlan, chance: float = 0.1) -> int:
    """Return a number of blocks that a request of one drawn table exceeds with at most the probability `chance`.

    Prompts that contain earlier rounds of a session, images or sound are left out; the result is 1 if no other prompts
    are left.
    """
    shape, longest = plan.shape, 1
    each = chance / (2 * shape.num_requests)
    for client, numbers in zip(shape.clients, plan.params.clients, strict=True):
        if client.is_accumulating or isinstance(numbers.input_law, Multimodal):
            continue
        prefix = 0 if client.prefix_group < 0 else int(plan.params.prefix_len[client.prefix_group])
        laws = numbers.input_law, numbers.output_law
        tokens = prefix + sum(longest_length(law, each) for law in laws)
        longest = max(longest, -(-tokens // shape.block_size))
    return longest


def _check_supported(spec: WorkloadSpec) -> None:
    if spec.revision != FIRST_REVISION:
        raise UnsupportedError(
            f"requests of {spec.revision} are drawn by BLIS's own streams alone; draw them with "
            f"--rng reference, or in Python with blis_jax.workload.reference.draw"
        )
    if not spec.clients:
        raise ConfigError(
            "the workload has no clients; read it with parse_spec or load_spec, which make them of inference_perf and "
            "servegen_data"
        )
    for index, client in enumerate(spec.clients):
        if rounds_of(client) > MOST_DRAWS // SIZE_STEP:
            raise ConfigError(
                f"clients[{index}].reasoning.multi_turn.max_rounds: got {rounds_of(client)}, "
                f"allowed is at most {MOST_DRAWS // SIZE_STEP}"
            )


def _check_items(shape: PlanShape, params: PlanParams) -> None:
    """Refuse counts of images, recordings and videos that would not fit into memory."""
    for index, (client, numbers) in enumerate(zip(shape.clients, params.clients, strict=True)):
        law = numbers.input_law
        if isinstance(law, Multimodal) and client.num_draws * law.draws_per_prompt > MOST_DRAWS:
            raise ConfigError(
                f"clients[{index}].multimodal: {client.num_draws} prompts of up to "
                f"{law.draws_per_prompt} parts need too many draws, allowed are {MOST_DRAWS}; give "
                f"the counts a lighter tail, lower num_requests or draw with --rng reference"
            )


def _check_clock(spec: WorkloadSpec, shape: PlanShape) -> None:
    """Refuse workloads longer than the largest representable arrival."""
    assert spec.aggregate_rate is not None
    longest_us = shape.latest_arrival_us / 8
    if shape.num_requests / spec.aggregate_rate * 1e6 > longest_us:
        raise ConfigError(
            f"aggregate_rate: {shape.num_requests} requests at {spec.aggregate_rate:g} per second "
            f"last longer than the clock; raise aggregate_rate or lower num_requests"
        )
    for index, client in enumerate(spec.clients):
        think_time_us = client.multi_turn.think_time_us if client.multi_turn else 0
        if rounds_of(client) * think_time_us > longest_us:
            raise ConfigError(
                f"clients[{index}].reasoning.multi_turn.think_time_us: {rounds_of(client)} "
                f"rounds, each {think_time_us} us after the one before, last longer than the "
                f"clock; lower think_time_us or max_rounds"
            )


def _sizes(spec: WorkloadSpec, wanted: int) -> tuple[int, list[float]]:
    """Return the number of rows in the table, and the number of gaps to draw per client."""
    traffic = traffic_of(spec, wanted)
    rate_us, cv, num_rounds = traffic.rate_us, traffic.cv, traffic.num_rounds
    is_windowed = spec.horizon > 0 or any(client.active_windows for client in spec.clients)
    has_sessions = any(client.multi_turn for client in spec.clients)
    if wanted and not is_windowed and not has_sessions:
        return wanted, _gaps_of_share(rate_us / rate_us.sum(), cv, wanted)
    end_us = _latest_end(traffic, float(spec.horizon) or math.inf, wanted)
    stop_us = np.array([min(end_us, last_end(windows)) for windows in traffic.windows])
    mean = rate_us * stop_us
    num_gaps = mean + SIGMAS * cv * np.sqrt(mean) + cv * cv / 2 + SPARE_DRAWS
    num_gaps = np.minimum(num_gaps, traffic.most_arrivals)
    num_draws = (num_gaps * num_rounds).sum()
    if num_draws > MOST_DRAWS:
        raise ConfigError(
            f"the workload needs {num_draws:.3g} draws, allowed are {MOST_DRAWS}; lower "
            f"num_requests or horizon, or move the lifecycle windows closer to time 0"
        )
    if wanted:
        return wanted, list(num_gaps)
    expected = float((expected_arrivals(traffic, end_us) * num_rounds).sum())
    spread = SIGMAS * math.sqrt(float((cv * cv * num_rounds**2 * mean).sum()))
    return _round_up(expected + spread + SPARE_DRAWS), list(num_gaps)


def _gaps_of_share(share: np.ndarray, cv: np.ndarray, num_requests: int) -> list[float]:
    """Return the gaps to draw per client: the expected number of its requests, plus SIGMAS standard deviations."""
    variance = cv * cv * share * num_requests
    others = variance.sum() - variance
    deviation = np.sqrt((1 - share) ** 2 * variance + share**2 * others)
    num_gaps = share * num_requests + SIGMAS * deviation + cv * cv / 2 + SPARE_DRAWS
    return list(np.minimum(num_gaps, num_requests))


def _latest_end(traffic: Traffic, horizon_us: float, wanted: int) -> float:
    """Return a time by which the wanted requests have almost certainly arrived, or the horizon."""
    if not wanted:
        return horizon_us
    rate_us = traffic.rate_us * traffic.num_rounds
    variance = float((traffic.cv**2 * traffic.num_rounds * rate_us).sum() / rate_us.sum() * wanted)
    goal = wanted + SIGMAS * math.sqrt(variance)
    low, high = 0.0, min(horizon_us, max(map(last_end, traffic.windows)))
    if math.isinf(high):
        high = wanted / float(rate_us.sum())
        # where every client's sessions are limited, the goal may be out of reach
        while expected_requests(traffic, high) < goal and high < NEVER_US:
            high *= 2.0
    for _ in range(60):
        middle = (low + high) / 2.0
        is_enough = expected_requests(traffic, middle) >= goal
        low, high = (low, middle) if is_enough else (middle, high)
    return high


def _num_proposals(arrival: ArrivalSpec, num_gaps: float) -> int:
    if gap_law(arrival) == "gamma":
        rejected = 1.0 - samplers.GAMMA_ACCEPTANCE
        num_gaps += SIGMAS * math.sqrt(num_gaps * rejected)
        num_gaps /= samplers.GAMMA_ACCEPTANCE
    return _round_up(num_gaps)


def _round_up(size: float) -> int:
    step = max(SIZE_STEP, 2 ** (math.ceil(size).bit_length() - 4))
    return step * max(1, math.ceil(size / step))

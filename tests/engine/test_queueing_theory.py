"""Mean waiting times against M/D/1, M/M/1 and M/M/k.

One instance with constant step time is a queue with k servers: the batch limit is k, a request of n
output tokens occupies its place for n steps, and nothing else takes time. Two things differ from the
textbook. A request joins a batch that is already stepping only at the next step's start, so it waits
up to one step longer (k > 1). And an instance whose batch empties is idle from the start of its last
step on, so a request that arrives during that step does not wait for its end: up to one step shorter. Service
is 50 steps on average, and the tolerance grants one step of difference either way.
"""

import math

import numpy as np
import pytest

from blis_jax.cluster import config
from blis_jax.core.outcome import Outcome
from blis_jax.records.record import RunRecord
from blis_jax.runs.many_runs import simulate
from blis_jax.runs.options import Options
from tests.support.scenes import Prompt, flags, table_of, workload_of

STEP_US = 200
MEAN_STEPS = 50
SERVICE_US = STEP_US * MEAN_STEPS
NUM_RUNS, NUM_REQUESTS, WARM_UP = 32, 2000, 500

# Two-sided Student quantile, 31 degrees of freedom: a correct simulator fails one check in 2,000.
QUANTILE = 3.89


def run(
    seed: int, load: float, servers: int, is_exponential: bool, num_requests: int = NUM_REQUESTS
) -> RunRecord:
    rng = np.random.default_rng(seed)
    gaps = rng.exponential(SERVICE_US / (load * servers), num_requests)
    arrivals = np.floor(np.cumsum(gaps)).astype(int)
    steps = np.full(num_requests, MEAN_STEPS)
    if is_exponential:
        # geometric with mean 50, the discrete exponential; its variance is 1/50 smaller relative to mean²
        steps = rng.geometric(1 / MEAN_STEPS, num_requests)
    prompts = [Prompt(int(a), 1, int(n)) for a, n in zip(arrivals, steps, strict=True)]
    settings = flags(beta_coeffs=[float(STEP_US), 0.0, 0.0], max_num_running_reqs=servers)
    table = table_of(workload_of(prompts))
    record = simulate(config.from_flags(settings), table, Options(num_slots=256))
    assert record.outcome == Outcome.COMPLETED
    return record


def first_come_waits(record: RunRecord, servers: int) -> np.ndarray:
    """Wait of each request in µs if servers take requests in order of arrival (Kiefer and Wolfowitz)."""
    free_at = np.zeros(servers)
    waits = []
    for arrival, steps in zip(record.requests.arrival_us, record.requests.output_len, strict=True):
        first = np.argmin(free_at)
        start = max(float(arrival), free_at[first])
        waits.append(start - arrival)
        free_at[first] = start + steps * STEP_US
    return np.array(waits)


KINDS = pytest.mark.parametrize(
    ("servers", "load", "is_exponential"),
    [(1, 0.7, False), (1, 0.6, True), (4, 0.8, True)],
    ids=["M/D/1", "M/M/1", "M/M/4"],
)


@KINDS
def test_waits_follow_the_queues_recursion(servers: int, load: float, is_exponential: bool):
    """The fast form of the means below: the same arrivals and services, request by request."""
    record = run(servers, load, servers, is_exponential, num_requests=300)
    waits = first_come_waits(record, servers)
    off = record.requests.sched_delay_us - waits
    assert waits.mean() > 5 * STEP_US, "nobody waits, so nothing is proved"
    assert abs(off.mean()) < STEP_US
    assert np.corrcoef(waits, record.requests.sched_delay_us)[0, 1] > 0.999


def erlang_c(servers: int, load: float) -> float:
    """Probability that an arrival has to wait."""
    offered = servers * load
    terms = [offered**n / math.factorial(n) for n in range(servers)]
    last = offered**servers / math.factorial(servers) / (1 - load)
    return last / (sum(terms) + last)


# Independent runs; the first 500 requests of each start from an empty system and are left out.
@pytest.mark.statistical
@pytest.mark.slow
@KINDS
def test_mean_wait(servers: int, load: float, is_exponential: bool):
    wait = erlang_c(servers, load) * SERVICE_US / (servers * (1 - load))
    squared_variation = 1 - 1 / MEAN_STEPS if is_exponential else 0.0
    expected = wait * (1 + squared_variation) / 2  # Pollaczek-Khinchine; for k > 1 an approximation
    seeds = range(1000 * servers, 1000 * servers + NUM_RUNS)
    means = [
        run(seed, load, servers, is_exponential).requests.sched_delay_us[WARM_UP:].mean()
        for seed in seeds
    ]
    half_width = QUANTILE * np.std(means, ddof=1) / math.sqrt(NUM_RUNS)
    assert half_width < 0.25 * expected, "the interval is too wide to prove anything"
    assert abs(np.mean(means) - expected) < half_width + STEP_US


def test_deterministic_service_follows_lindleys_recursion():
    """Request by request: the wait is Lindley's, up to the step that an emptied instance gives back."""
    record = run(7, 0.9, 1, is_exponential=False)
    arrival = record.requests.arrival_us
    free_at, waits = 0, []
    for time in arrival.tolist():
        start = max(time, free_at)
        waits.append(start - time)
        free_at = start + SERVICE_US
    given_back = np.array(waits) - record.requests.sched_delay_us
    assert given_back.min() >= 0
    # each busy period may begin one step early, and inherits what the one before gave back
    assert np.all(np.diff(given_back) <= STEP_US)
    assert np.mean(record.requests.sched_delay_us == waits) > 0.5


def test_enough_servers_mean_no_waiting():
    """A batch that never fills: a request waits for the start of the next step, no longer."""
    record = run(8, 0.5, 200, is_exponential=True)
    assert record.requests.sched_delay_us.max() <= STEP_US
    twin = run(8, 0.5, 1, is_exponential=True)
    assert twin.requests.sched_delay_us.max() > STEP_US


def test_one_token_requests_overlap():
    """Why services are 50 steps here: with one step each the instance is always idle, and nobody waits."""
    prompts = [Prompt(time, 1, 1) for time in range(0, 100 * STEP_US, STEP_US // 2)]
    settings = flags(beta_coeffs=[float(STEP_US), 0.0, 0.0], max_num_running_reqs=1)
    record = simulate(config.from_flags(settings), table_of(workload_of(prompts)))
    assert record.requests.sched_delay_us.max() == 0

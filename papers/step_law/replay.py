"""The load of a measured deployment through the simulator with the law fitted to it: whole runs, not single steps.

A file of steps has sums over batches, no requests. Where one rank serves a fixed number of users who wait for their
answers, these sums say when a request began and ended: a user's next prompt comes after an answer ends, and the context
that then leaves the batch is the length of the request that ended. Requests come when they are first seen in the queue
or in a batch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas

from blis_jax.calibrate.step_fit import fitted, samples_of
from blis_jax.cluster.config import ClusterConfig
from blis_jax.latency.model_description import is_shipped, model_description
from blis_jax.reports.render import table_text
from blis_jax.runs.closed_loop import simulate_closed_loop
from blis_jax.runs.many_runs import over_seeds
from blis_jax.traces.closed_loop import closed_loop_of_rows
from blis_jax.traces.measured.steps import EngineSteps, MeasuredEngine
from blis_jax.traces.rows import DELAY, NO_DELAY, make_rows
from blis_jax.workload.spec import load_builtin

if TYPE_CHECKING:
    from jaxtyping import Float

SEGMENT, LOAD = "segment", "real"  # column of a file, and its steps in which requests ran
PERCENTS = (10, 50, 90, 99)  # of the steps
TOKENS, SEQUENCES = 8192, 128  # most in a step of these engines
ENOUGH_BLOCKS = 1_000_000  # no step of these runs waits for memory
QUEUE = "queued_prefill_requests"  # column of a file, requests that wait for their first step


@dataclass
class Served:
    """A request as the batches show it; steps are indices into the file."""

    user: int
    prompt: int
    free: int  # the step after its user's answer before, or 0
    joined: int  # the first step in which it decodes
    ended: int  # the last one

    def context(self, step: int) -> int:
        """Return the tokens of its context in a step in which it decodes."""
        return self.prompt + step - self.joined

    @property
    def answer(self) -> int:
        """Return the tokens of its answer, of which the prompt's last step makes the first."""
        return self.ended - self.joined + 2


class Arrivals(NamedTuple):
    """When requests came, ms from the begin of the first step `[request]`."""

    came: Float[np.ndarray, " request"]
    seen: Float[np.ndarray, " request"]  # by a scheduler that plans a batch as it begins
    answered: Float[np.ndarray, " request"]  # the answer before; 0: none


class WholeRun(NamedTuple):
    """Seconds, throughput and times of a whole run."""

    seconds: float
    tokens_per_s: float  # of answers
    ttft_ms: float  # mean
    steps_ms: tuple[float, ...]  # percentiles of all steps, see `PERCENTS`


class _Batch:
    """Who decodes, and which users are free since when."""

    def __init__(self, users: int, count: int) -> None:
        self.free = [(user, 0) for user in range(users)]
        self.active: list[Served] = []
        self.found: list[Served] = []
        self.count = count

    def join(self, prompts: Sequence[float], step: int) -> None:
        for prompt in prompts:
            user, since = self.free.pop(0)
            served = Served(user, max(round(prompt), 1), since, step, self.count - 1)
            self.active.append(served)
            self.found.append(served)

    def leave(self, number: int, context: float, step: int) -> None:
        """End `number` requests after a step: those whose contexts are nearest to `context`, which left with each."""
        for _ in range(number):
            nearest = min(self.active, key=lambda served: abs(served.context(step) - context))
            nearest.ended = step
            self.active.remove(nearest)
            self.free.append((nearest.user, step + 1))


def requests_of(steps: EngineSteps) -> list[Served]:
    """Return the requests of a closed loop from the sums of its batches, by the step in which they join.

    The steps are of one rank. Of requests that join in one step the sum and the spread of their prompts are known, no
    more.
    """
    sums, count = steps.sums, len(steps)
    decodes = sums.decodes.astype(int)
    squares = sums.decodes * sums.spread**2 + sums.context**2 / np.maximum(sums.decodes, 1)
    batch = _Batch(int(decodes.max()), count)
    tokens = 0.0  # of prompts that have not joined
    for at in range(count - 1):
        more = decodes[at + 1] - decodes[at]
        grown = sums.context[at + 1] - sums.context[at] - decodes[at]
        tokens += sums.prompt_tokens[at]
        if more > 0:
            square = squares[at + 1] - squares[at] - 2 * sums.context[at] - decodes[at]
            batch.join(_lengths(more, grown, square), at + 1)
            tokens = max(tokens - grown, 0.0)
        elif more < 0:
            batch.leave(-more, (more - grown) / -more, at)
        elif abs(grown) > 1 and sums.prompts[at]:  # one came as another went
            batch.leave(1, tokens - grown - 1, at)
            batch.join([tokens], at + 1)
            tokens = 0.0
    return batch.found


def arrivals_of(
    steps: EngineSteps, requests: Sequence[Served], queued: np.ndarray | None = None
) -> Arrivals:
    """Return when requests came.

    With asynchronous scheduling a batch is planned as the one before it begins. A request that waits beside a batch
    came after the batch was planned and before it began; one that is computed at once came in that time of the batch
    before. It is taken to have come in the middle of that time, but not before its user's last answer.

    Args:
        steps: of one rank.
        requests: as `requests_of` finds them.
        queued: how many wait in each step; None: all users are there from the start.
    """
    begins = np.concatenate([[0.0], np.cumsum(steps.ms)])
    middles = np.concatenate([[0.0], (begins[1:] + begins[:-1]) / 2])  # `[step]`, of the one before
    free = np.array([request.free for request in requests])
    answered, first = begins[free], _first_steps(steps, requests)
    before = np.maximum(first - 1, 0)
    if queued is not None:
        ended = np.sort([request.ended for request in requests])
        there = np.searchsorted(ended, np.arange(len(steps))) + queued
        there = np.maximum.accumulate(there + steps.sums.decodes + steps.sums.prompts)
        waits = np.searchsorted(there, np.arange(1, len(requests) + 1))
        before = np.where(waits < first, waits, before)
    came, seen = np.maximum(middles[before], answered), middles[before + 1]
    if queued is None:
        came, seen = (np.where(free > 0, times, 0.0) for times in (came, seen))
    return Arrivals(came, np.maximum(seen, came), answered)


def _first_steps(steps: EngineSteps, requests: Sequence[Served]) -> np.ndarray:
    """Return the step in which the prompt of each request begins, first come first served among steps in a row."""
    has_prompt = steps.sums.prompts > 0
    rows = np.flatnonzero(has_prompt & ~np.concatenate([[False], has_prompt[:-1]]))
    tokens = np.concatenate([[0.0], np.cumsum(steps.sums.prompt_tokens)])
    first, row, done = [], -1, 0.0
    for request in requests:
        its = int(np.searchsorted(rows, request.joined - 1, side="right")) - 1
        if its != row:
            row, done = its, tokens[rows[its]]
        begins = int(np.searchsorted(tokens, done, side="right")) - 1
        first.append(min(begins, request.joined - 1))
        done += request.prompt
    return np.array(first)


def _lengths(number: int, total: float, square: float) -> list[float]:
    """Return lengths of this sum and, as far as it can be, this sum of squares."""
    mean = total / number
    apart = math.sqrt(max(square / number - mean**2, 0.0))
    half = number // 2
    apart = min(apart * math.sqrt(number / (2 * half)), mean - 1) if half else 0.0
    return [mean - apart] * half + [mean + apart] * half + [mean] * (number % 2)


def measured(steps: EngineSteps, requests: Sequence[Served], arrivals: Arrivals) -> WholeRun:
    """Return seconds, throughput and times of the recorded run."""
    ends = np.concatenate([[0.0], np.cumsum(steps.ms)])
    waits = ends[[request.joined for request in requests]] - arrivals.came
    return _whole_run(steps.ms, ends[-1] / 1e3, requests, waits)


def simulated(
    beta: Float[np.ndarray, " term"],
    requests: Sequence[Served],
    arrivals: Arrivals,
    engine: MeasuredEngine | None = None,
) -> WholeRun:
    """Return what the simulator makes of the same requests; each user's next request follows the answer before.

    Args:
        beta: the law.
        requests: the requests to serve.
        arrivals: when they come; a later request keeps its distance to the answer before.
        engine: whose linear attention, if it has any, says where prompts are cut.
    """
    users = pandas.Series([request.user for request in requests])
    turn = users.groupby(users).cumcount().to_numpy()
    rows = make_rows(
        np.where(turn > 0, 0.0, np.round(1e3 * arrivals.seen)),
        np.array([request.prompt for request in requests]),
        np.array([request.answer for request in requests]),
        texts={"session": np.array([f"user {user}" for user in users])},
        round_index=turn,
    )
    delays = np.round(1e3 * (arrivals.seen - arrivals.answered))
    rows = replace(rows, others={DELAY: np.where(turn > 0, delays, NO_DELAY)})
    config = ClusterConfig(
        num_instances=1, latency_model="step-law", alpha_coeffs=(0.0, 0.0, 0.0), beta_coeffs=tuple(beta),
        max_num_scheduled_tokens=TOKENS, max_num_running_reqs=SEQUENCES, total_kv_blocks=ENOUGH_BLOCKS, corrected=True,
        **_cuts(engine),
    )  # fmt: skip
    workload = closed_loop_of_rows(rows)
    assert workload is not None
    record = simulate_closed_loop(config, workload).record
    ms = np.repeat(record.steps.duration_us, record.steps.num_steps) / 1e3
    ttft_ms = record.requests.ttft_us / 1e3 + (arrivals.seen - arrivals.came)
    return _whole_run(ms, record.requests.left_us.max() / 1e6, requests, ttft_ms)


def _cuts(engine: MeasuredEngine | None) -> dict[str, Any]:
    """Return where the engine cuts prompts, as vLLM does by itself where a model has linear attention."""
    if engine is None or not is_shipped(engine.model):
        return {}
    if not model_description(engine.model).kinds.linear:
        return {}
    return {"mamba_cache_mode": "align", "model": engine.model.lower(), "tp": engine.tp}


def _whole_run(ms: Any, seconds: float, requests: Sequence[Served], waits: Any) -> WholeRun:
    tokens = sum(request.answer for request in requests)
    spread = tuple(np.percentile(ms, PERCENTS).tolist())
    return WholeRun(float(seconds), float(tokens / seconds), float(np.mean(waits)), spread)


# --- the table ------------------------------------------------------------------------------------


def replayed(runs: Sequence[EngineSteps], table: pandas.DataFrame) -> str:
    """Return the table of whole runs by the fit to each run's first half; `table` has the file's rows.

    The interval of a new deployment is as wide as the largest error. A deployment that is like these n lies in it in n
    ÷ (n + 1) of cases.
    """
    rows, logs = [], []
    segments = table[SEGMENT].to_numpy()
    for steps in runs:
        if steps.engine.dp > 1:
            continue
        load = steps.part(segments[steps.rows] == LOAD)
        queued = table[QUEUE].to_numpy(float)[load.rows] if QUEUE in table else None
        measurement, simulation = _both(steps, load, queued)
        logs.append(np.log(_figures(simulation) / _figures(measurement)))
        cells = [f"{100 * math.expm1(log):+.1f}".replace("-", "−") for log in logs[-1]]
        seconds, ttft_ms = f"{measurement.seconds:.1f}", f"{measurement.ttft_ms:.0f}"
        rows.append([steps.run, seconds, ttft_ms, *cells])
    most = np.abs(logs).max(axis=0, initial=0.0)
    widths = [f"{100 * math.expm1(width):.1f}" for width in most] if rows else []
    rows.append([f"± for a new one, in {len(rows)} of {len(rows) + 1} cases", "", "", *widths])
    head = ["deployment", "measured, s", "mean TTFT, ms", "whole run", "tokens/s", "TTFT"]
    head += [f"steps, P{percent}" for percent in PERCENTS]
    return (
        "Whole runs, simulated by the fit to the first half of the steps, error in %:\n\n"
        + table_text(head, rows)
    )


def _both(
    steps: EngineSteps, load: EngineSteps, queued: np.ndarray | None
) -> tuple[WholeRun, WholeRun]:
    requests = requests_of(load)
    arrivals = arrivals_of(load, requests, queued)
    samples, _ = samples_of(steps.part(np.arange(len(steps)) < len(steps) // 2))
    simulation = simulated(fitted(samples), requests, arrivals, steps.engine)
    return measured(load, requests, arrivals), simulation


def _figures(run: WholeRun) -> Float[np.ndarray, " figure"]:
    return np.array([run.seconds, run.tokens_per_s, run.ttft_ms, *run.steps_ms])


def costs(clusters: Mapping[str, ClusterConfig], num_seeds: int, turns: int) -> tuple[str, float]:
    """Return the table of the CPU time of a run of `mixed` and of its steps, and how many times that of the first law a
    step takes with the last.

    All are medians over turns, ratios too: a machine that is busy for a while is so for all laws of a turn.

    Args:
        clusters: one with each law, by the law's name.
        num_seeds: runs of each law in a turn.
        turns: of all laws one after the other, after one to compile.
    """
    spec = load_builtin("mixed")
    seconds, steps = np.empty((1 + turns, len(clusters))), np.empty(len(clusters))
    for turn in range(1 + turns):
        for place, config in enumerate(clusters.values()):
            before = time.process_time()
            runs = over_seeds(config, spec, range(num_seeds), lambda run: run.steps.num_steps)
            seconds[turn, place] = time.process_time() - before
            steps[place] = sum(int(np.sum(each)) for each in runs)
    of_run, of_step = seconds[1:] / num_seeds, seconds[1:] / steps
    rows = []
    for place, name in enumerate(clusters):
        cells = [f"{steps[place] / num_seeds:,.0f}"]
        for unit, times in ((1e3, of_run), (1e9, of_step)):
            ratio = times[:, place] / times[:, 0]
            low, middle, high = np.quantile(ratio, (0.25, 0.5, 0.75))
            cells.append(f"{unit * np.median(times[:, place]):.3g}")
            cells.append(f"{middle:.2f} [{low:.2f}, {high:.2f}]" if place else "1")
        rows.append([name, *cells])
    head = ["law", "steps of a run", "CPU ms a run", "times the first [quartiles]", "CPU ns a step"]
    of_last = float(np.median(of_step[:, -1] / of_step[:, 0]))
    return table_text([*head, "times the first [quartiles]"], rows), of_last

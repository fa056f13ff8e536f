"""The law of measured steps: made-up servers whose law is known, and the command on them."""

import contextlib
import dataclasses
import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from blis_jax.calibrate import __main__ as calibrate
from blis_jax.latency.step_law import TERMS as LAW_TERMS
from blis_jax.latency.step_law import StepSums
from blis_jax.traces.measured.steps import EngineSteps, MeasuredEngine
from blis_jax.workload.spec import load_builtin, override
from papers.step_law import __main__ as paper
from papers.step_law import replay
from papers.step_law.law import (
    BLOCK_TOKENS,
    COLUMNS,
    TERMS,
    MeasuredSteps,
    by_quarters,
    change,
    fitted,
    predicted_us,
    read_steps,
)
from papers.step_law.limits import between_halves, by_other_requests, by_repeats
from papers.step_law.replay import arrivals_of, measured, requests_of, simulated
from tests.calibrate.made_engine import made_steps as engine_steps
from tests.support.recorded.reference_data import SHARED_DIR

REAL = SHARED_DIR / "data" / "real_serving_runs" / "vllm_steps.parquet"
PER_STEP, PER_TOKEN, PER_DECODE, PER_PROMPT = 9000.0, 3.0, 40.0, 400.0


def made_up(num_steps: int = 800, per_prompt: float = PER_PROMPT, seed: int = 0) -> pd.DataFrame:
    """Steps of a server with the base law and a cost of prompts; every fifth is not recorded."""
    rng = np.random.default_rng(seed)
    prefills, decodes = rng.integers(0, 4, num_steps), rng.integers(1, 60, num_steps)
    new = np.where(prefills > 0, rng.integers(1, 500, num_steps), 0)
    period = PER_STEP + PER_TOKEN * new + PER_DECODE * decodes + per_prompt * prefills
    period = period + rng.normal(0, 50, num_steps)
    start = np.int64(2_261_430_491_000_000) + np.cumsum(np.append(0, period[:-1]) * 1e3).astype(int)
    table = pd.DataFrame(
        {
            "number": np.arange(num_steps),
            "start_ns": start,
            "duration_us": 300,
            "prefills": prefills,
            "decodes": decodes,
            "new_tokens": new,
            "finished": rng.integers(0, 2, num_steps),
            "blocks": 30_000,
            "free": 30_000 - rng.integers(1000, 4000, num_steps),
        }
    ).rename(columns=COLUMNS)
    about = {"experiment_id": "made", "model": "codellama-34b", "workload": "general", "tp": 2}
    return table.assign(**about)[np.arange(num_steps) % 5 != 4]


def steps_of(tmp_path: Path, table: pd.DataFrame) -> MeasuredSteps:
    pytest.importorskip("pyarrow")
    table.to_parquet(tmp_path / "steps.parquet")
    (steps,) = read_steps(tmp_path / "steps.parquet")
    return steps


def test_periods_are_those_of_steps_in_a_row(tmp_path):
    table = made_up()
    steps = steps_of(tmp_path, table)
    assert (steps.model, steps.tp, steps.num_recorded) == ("codellama-34b", 2, len(table))
    assert len(steps.period_us) + steps.num_left_out == 3 * len(table) // 4
    law = PER_STEP + PER_TOKEN * steps.new_tokens + PER_DECODE * steps.decodes
    law = law + PER_PROMPT * steps.prefills
    assert np.max(np.abs(steps.period_us - law)) < 300  # six times the noise; nanoseconds are kept
    assert steps.context.min() >= BLOCK_TOKENS * 1000


def test_the_missing_term_is_found_and_the_others_are_not(tmp_path):
    steps = steps_of(tmp_path, made_up())
    base = fitted(steps, ())
    right = fitted(steps, ["requests in prefill"])
    np.testing.assert_allclose(
        right.coefficients, [PER_STEP, PER_TOKEN, PER_DECODE, PER_PROMPT], rtol=0.1
    )
    assert change(base, right, len(TERMS)).high < -50
    assert change(base, fitted(steps, ["requests that finish"]), len(TERMS)).holds(0.0)
    low, *_, high = by_quarters(steps.prefills, base.residual_us)
    assert low < -100 < 100 < high


def test_where_nothing_is_missing_no_term_is_found(tmp_path):
    steps = steps_of(tmp_path, made_up(per_prompt=0.0))
    base = fitted(steps, ())
    assert all(change(base, fitted(steps, [one]), len(TERMS)).low > -5 for one in TERMS)


def test_laws_from_sizes_see_every_request(tmp_path):
    """More requests take longer by what each costs, and a model without a description has no law."""
    steps = steps_of(tmp_path, made_up())
    times = predicted_us(steps, "trained-physics")
    assert times is not None and np.all(times > 5000)
    only = steps.prefills == 0
    matrix = np.column_stack([np.ones_like(times), steps.requests, steps.context])
    found = np.linalg.lstsq(matrix[only], times[only], rcond=None)[0]
    # β10 of 2·48·1024·2 bytes over two GPUs and 3.35 TB/s; β6, one such token, and what two GPUs exchange
    per_token = 1.947 * 2 * 48 * 1024 * 2 / 2 / 3.35e6
    exchanged = 0.752 * 2 * 48 * 8192 * 2 * 2 / 2 / 3.35e6
    assert found[2] == pytest.approx(per_token, rel=0.02)
    assert found[1] == pytest.approx(4.417 + per_token + exchanged, rel=0.03)
    other = steps_of(tmp_path, made_up().assign(model="unheard-of"))
    assert predicted_us(other, "roofline") is None


def test_the_command_prints_all_tables(tmp_path, capsys):
    steps_of(tmp_path, made_up())
    assert paper.main(["--steps", str(tmp_path / "steps.parquet")]) == 0
    printed = capsys.readouterr().out
    assert "| codellama-34b, TP 2, general | 640 | 4" in printed
    assert "| codellama-34b, TP 2, general | roofline |" in printed
    (line,) = [line for line in printed.splitlines() if "requests in prefill | 4" in line]
    assert "] * |" in line  # the interval of the term that is there does not hold 0


@pytest.mark.lenient_promotion  # optax divides counts
def test_engines_are_held_out_and_their_tables_are_printed(tmp_path, capsys):
    """A law with regimes beats a straight line where there are some, also on a TP that was not fitted."""
    path = tmp_path / "engines.csv"
    tables = [engine_steps(400, tp=tp, seed=tp) for tp in (1, 2, 4)]
    pd.concat(tables).to_csv(path, index=False)
    assert paper.main(["--engines", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "in 3 of 3 deployments" in " ".join(printed.split())
    rows = [line.split(" | ") for line in printed.splitlines() if line.startswith("| TP ")]
    assert [row[1] for row in rows] == ["made-tp1", "made-tp2", "made-tp4"]
    law, line = (
        [float(one) for one in rows[1][place].strip(" |").split(" / ")] for place in (2, 3)
    )
    assert max(law) < 3 and all(mine < other for mine, other in zip(law, line, strict=True))
    networks = printed[printed.index("Networks on the law") :]
    chosen = [
        line.split(" | ")[-1] for line in networks.splitlines() if line.startswith("| made-tp")
    ]
    assert len(chosen[:3]) == 3 and {*chosen[:3]} <= {"step law |", "networks |"}
    assert paper.main(["--engines", str(path), "--steps", str(path)]) == 2
    assert "--steps has no meaning beside --engines" in capsys.readouterr().err


def test_steps_of_a_fitted_law_are_timed_beside_a_straight_line(tmp_path, capsys, monkeypatch):
    engine_steps(400, tp=2, seed=2).to_csv(tmp_path / "engine.csv", index=False)
    fit = tmp_path / "fit.json"
    with contextlib.redirect_stdout(io.StringIO()):
        assert calibrate.main([str(tmp_path / "engine.csv"), "--output", str(fit)]) == 0
    few = override(load_builtin("mixed"), num_requests=60)
    monkeypatch.setattr(replay, "load_builtin", lambda name: few)
    monkeypatch.setattr(paper, "SEEDS", 2)
    monkeypatch.setattr(paper, "TURNS", 1)
    assert paper.main(["--cost", str(fit)]) == 0
    lines = capsys.readouterr().out.splitlines()
    line, law = (
        next(row.split(" | ") for row in lines if row.startswith(f"| {name}"))
        for name in ("straight line", "step-law")
    )
    assert line[3] == "1" and float(law[4]) > 100  # ns: more than nothing
    ratio = law[5].partition(" ")[0]
    assert any(f"{ratio} times what it costs with a straight line" in row for row in lines)


def loop_steps(prompts: list[int], answers: list[int], ms: float = 10.0) -> EngineSteps:
    """Batches of two users, the second of whom begins three steps later; each sends the next prompt after an answer."""
    waiting = list(zip(prompts, answers, strict=True))
    batch: list[list[int]] = []  # context and tokens to go
    rows: list[tuple[float, ...]] = []
    while waiting or batch:
        coming = [waiting.pop(0)] if waiting and len(batch) < min(2, 1 + len(rows) // 3) else []
        contexts = np.array([context for context, _ in batch], float)
        spread = contexts.std() if batch else 0.0
        new = sum(prompt for prompt, _ in coming)
        rows.append((len(coming), new, 0, len(batch), contexts.sum(), spread))
        batch = [[context + 1, left - 1] for context, left in batch if left > 1]
        batch += [[prompt, answer - 1] for prompt, answer in coming]
    count = np.arange(len(rows))
    sums = StepSums(*np.array(rows, float).T)
    engine = MeasuredEngine("made/up")
    return EngineSteps("made", engine, count, 0 * count, count, sums, np.full(len(rows), ms))


def test_requests_are_found_in_sums_of_batches_and_replayed():
    """Lengths of every request come out as they went in; a law of one time a step takes that time."""
    prompts, answers = [100, 2000, 50, 700, 1500], [40, 25, 60, 30, 10]
    steps = loop_steps(prompts, answers)
    found = requests_of(steps)
    assert [one.prompt for one in found] == prompts
    assert [one.answer for one in found] == answers
    beta = np.where(np.array(LAW_TERMS) == "µs per step", 10_000.0, 0.0)
    arrivals = arrivals_of(steps, found)
    run, recorded = simulated(beta, found, arrivals), measured(steps, found, arrivals)
    assert recorded.seconds == pytest.approx(len(steps) / 100)
    assert run.steps_ms == pytest.approx(recorded.steps_ms)
    assert run.seconds == pytest.approx(recorded.seconds, rel=0.05)


def test_requests_come_when_they_are_seen():
    """A queue tells who waits beside a batch: it came while that was planned already, so in the step before it."""
    prompts, answers = [100, 2000, 50, 700], [40, 25, 60, 30]
    steps = loop_steps(prompts, answers)
    found = requests_of(steps)
    queued = np.where(np.arange(len(steps)) == 2, 1.0, 0.0)
    arrivals = arrivals_of(steps, found, queued)
    assert arrivals.came[:2].tolist() == [0, 15] and arrivals.seen[:2].tolist() == [5, 25]
    assert arrivals_of(steps, found).seen[:2].tolist() == [0, 0]
    # later turns come with the end of the answer, and are computed in the next step
    assert np.all(arrivals.came[2:] == arrivals.answered[2:]) and np.all(arrivals.came[2:] > 0)
    beta = np.where(np.array(LAW_TERMS) == "µs per step", 10_000.0, 0.0)
    soon, recorded = simulated(beta, found, arrivals), measured(steps, found, arrivals)
    assert soon.ttft_ms == pytest.approx(recorded.ttft_ms, abs=5)
    late = arrivals._replace(seen=arrivals.seen + np.where(arrivals.answered > 0, 100.0, 0.0))
    later = simulated(beta, found, late)
    assert later.seconds > soon.seconds + 0.09
    # two of the four are later turns, which wait 100 ms more
    assert later.ttft_ms - soon.ttft_ms == pytest.approx(50.0, abs=10.0)


def test_a_user_who_is_away_does_not_wait():
    """The second prompt of the only user comes 30 steps after the answer, which is no TTFT."""
    first, second = loop_steps([100], [20]), loop_steps([100], [20])
    sums = [
        np.concatenate([a, np.zeros(30), b]) for a, b in zip(first.sums, second.sums, strict=True)
    ]
    count = np.arange(len(sums[0]))
    steps = dataclasses.replace(
        first, rows=count, sequence=0 * count, number=count, sums=StepSums(*sums), ms=np.full(len(count), 10.0)
    )  # fmt: skip
    found = requests_of(steps)
    assert [one.prompt for one in found] == [100, 100]
    arrivals = arrivals_of(steps, found, 0.0 * count)
    assert measured(steps, found, arrivals).ttft_ms == pytest.approx(20.0, abs=6)
    assert arrivals.came[1] - arrivals.answered[1] > 250


def test_a_batch_that_takes_another_time_later_shows():
    steps = loop_steps([100] * 40, [50] * 40)
    assert between_halves(steps)[0] == 0.0
    later = np.where(np.arange(len(steps)) < len(steps) // 2, 10.0, 12.0)
    apart, count = between_halves(dataclasses.replace(steps, ms=later))
    assert apart == pytest.approx(1 / 6) and count > 100


def test_other_requests_show_what_a_batch_does_not_say():
    """Batches of 40 steps each, whose pace no column tells: the second and fourth are slow."""
    count, slow = np.arange(200), np.arange(200) // 40 % 2 == 1
    two, context = np.full(200, 2.0), 2.0 * (1000 + count % 40)
    sums = StepSums(0.0 * two, 0.0 * two, 0.0 * two, two, context, 0.0 * two)
    engine = MeasuredEngine("made/up")
    steps = EngineSteps("made", engine, count, 0 * count, count, sums, np.where(slow, 12.0, 10.0))
    # of the others 120 are fast and 40 slow where this one is slow, else 80 fast and 80 slow
    others = by_other_requests(steps)
    np.testing.assert_allclose(others, np.where(slow, 10.0, 11.0))
    alone = steps.part(count < 40)
    assert np.isnan(by_other_requests(alone)).all()


def test_repeats_that_were_seen_say_the_steps_of_the_other_half():
    steps = loop_steps([1000] * 8, [40] * 8)
    odd = np.arange(len(steps)) % 2 == 1
    of_halves = np.where(odd, 11.0, 10.0)
    found = by_repeats(dataclasses.replace(steps, ms=of_halves))
    known = np.isfinite(found)
    assert known.sum() > len(steps) / 2
    np.testing.assert_array_equal(found[known], np.where(odd, 10.0, 11.0)[known])


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (None, "does not exist; give a Parquet file"),
        (made_up().drop(columns="step.id"), "lacks the columns step.id"),
        (made_up(90), "steps in a row, 100 are needed"),
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path, capsys, table, words):
    pytest.importorskip("pyarrow")
    path = tmp_path / "steps.parquet"
    if table is not None:
        table.to_parquet(path)
    assert paper.main(["--steps", str(path)]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.skipif(not REAL.is_file(), reason=f"{REAL} is not here")
def test_prompts_cost_more_than_their_tokens_on_real_servers():
    """What docs/results/step-law.md states."""
    pytest.importorskip("pyarrow")
    runs = read_steps(REAL)
    assert [len(run.period_us) for run in runs] == [587, 651, 708]
    num_intervals = 2 * len(runs) * len(TERMS)
    for run, is_clear in zip(runs, (True, False, True), strict=True):
        base, more = fitted(run, ()), fitted(run, ["requests in prefill"])
        assert (change(base, more, num_intervals).high < 0) == is_clear
        assert 150 < more.coefficients[-1] < 450
        assert np.median(run.duration_us) < 0.05 * np.median(run.period_us)

"""The search benchmark: seeds, knowledge of branches, judging on fresh seeds, tables."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks.search import __main__ as search
from benchmarks.search import command, judging
from benchmarks.search.judging import (
    Found,
    is_near_at,
    median_interval,
    needed,
    ratio_of,
    share_interval,
    tolerance_of,
)
from benchmarks.search.ratios import bar_lines, ratio_line, share_below
from benchmarks.search.report import draw, joined, summary_of
from benchmarks.search.turbo import (
    FIRST_OF_SEARCHES,
    MOST_SEARCHES,
    NUM_SEEDS,
    PLAIN,
    Plan,
    engine_of,
    record_of,
    seeds_of_search,
)
from blis_jax.errors import ConfigError
from blis_jax.metrics.run_summary import RunSummary
from sweeps.search.loop import PointRuns
from sweeps.search.objectives import Valuation
from tests.sweeps.tiny import TINY, budget, run_of, tiny_space

BRANCHED = TINY.replace(
    "objectives:",
    "overrides:\n  - {when: {max_num_scheduled_tokens: 600}, settings: {num_instances: 3}}\nobjectives:",
)


# --- statistics -----------------------------------------------------------------------------------


def test_evaluations_needed_are_those_of_the_first_point_near_enough() -> None:
    assert needed([3, 20, 77], [False, True, True]) == 21
    assert needed([3, 20], [False, False]) == math.inf


def test_median_of_censored_counts_and_its_interval() -> None:
    counts = [10.0, 20.0, 30.0, 40.0, 50.0, 60.0, math.inf, math.inf, math.inf]
    middle, low, high = median_interval(counts)
    assert middle == 50 and low == 20 and math.isinf(high)  # order statistics 2 and 8 of 9
    assert median_interval([5.0, math.inf])[0] == math.inf
    assert np.isnan(median_interval([1.0, 2.0, 3.0])[1:]).all()  # too few for 95 %


def test_median_intervals_hold_the_median_as_often_as_they_say() -> None:
    """2,000 samples of 12; the exact coverage is 0.961, five standard errors are 0.022."""
    random = np.random.default_rng(3)
    inside = 0
    for sample in random.exponential(size=(2000, 12)):
        _, low, high = median_interval(sample.tolist())
        inside += low <= math.log(2) <= high
    assert 0.939 <= inside / 2000 <= 0.983


def test_ratios_of_medians_hold_the_truth_as_often_as_they_say() -> None:
    """200 samples of 40 pairs whose medians are 2 and 3; bootstrap percentiles hold 91 to 99 % of them."""
    random = np.random.default_rng(4)
    inside = 0
    for _ in range(200):
        common = random.lognormal(sigma=0.3, size=40)
        ours, theirs = (
            level * common * random.lognormal(sigma=0.3, size=40) for level in (2.0, 3.0)
        )
        low, high = ratio_of(ours.tolist(), theirs.tolist(), 1e9, draws=400).interval()
        inside += low <= 2 / 3 <= high
    assert 182 <= inside <= 198


def test_a_median_that_is_censored_counts_as_the_budget() -> None:
    ratio = ratio_of([50.0, 50.0, math.inf], [math.inf, math.inf, 10.0], 200.0).ratio
    assert ratio == 0.25


def test_intervals_of_shares_are_the_exact_ones() -> None:
    """Values of the table of Clopper and Pearson; at both ends the interval is one-sided."""
    assert share_interval(14, 20) == pytest.approx((0.457, 0.881), abs=1e-3)
    assert share_interval(0, 20) == pytest.approx((0.0, 1 - 0.025 ** (1 / 20)))
    assert share_interval(20, 20) == pytest.approx((0.025 ** (1 / 20), 1.0))


# --- seeds and engines ----------------------------------------------------------------------------


def test_no_search_sees_the_seeds_of_another_or_of_its_judges() -> None:
    first, second = seeds_of_search(7), seeds_of_search(8)
    assert len(first) == NUM_SEEDS and first[-1] + 1 == second[0]
    assert seeds_of_search(MOST_SEARCHES - 1)[-1] < judging.FIRST_TO_CHOOSE
    assert judging.FIRST_TO_JUDGE + judging.NUM_JUDGING <= FIRST_OF_SEARCHES
    assert judging.FIRST_TO_JUDGE > 5199  # past all seeds that the record and the ledger used


@pytest.mark.parametrize("engine", [*PLAIN, "denoised"])
def test_every_engine_begins_in_branches_as_often(engine: str) -> None:
    space = tiny_space(BRANCHED)
    points = engine_of(space, budget(engine, initial=16)).ask([], 8)
    assert [point[1] == 600 for point in points] == [False, False, False, True] * 2


def test_an_engine_that_left_has_its_tables_and_no_searches() -> None:
    with pytest.raises(ConfigError, match="'gp' cannot search any more"):
        engine_of(tiny_space(BRANCHED), budget("gp"))


# --- judging --------------------------------------------------------------------------------------


def test_a_difference_drops_what_a_seed_does_to_both() -> None:
    """Seeds vary by 50, the two points part by 1 ± 2: the error is that of the second, within a third."""
    random = np.random.default_rng(5)
    common, own = random.normal(100, 50, 256), random.normal(1, 2, 256)
    valuation = Valuation(tiny_space().strategy)
    runs, reference = (
        tuple(
            run_of(**{"ttft_p99_ms[critical]": float(one), "tokens_per_sec": 1.0}) for one in values
        )
        for values in (common + own, common)
    )
    found = judging.verdict(valuation, runs, reference)
    assert found.difference == pytest.approx(own.mean())
    assert found.standard_error == pytest.approx(own.std(ddof=1) / 16, rel=0.33)
    assert judging.verdict(valuation, reference, reference)[1:] == (0.0, 0.0)


def test_best_points_far_from_the_end_are_not_judged() -> None:
    scores = [200.0, 150.0, 104.0, 120.0, 101.0, 102.0, 100.0]
    one = judging.Search("gp", 0, list("abcdefg"), scores)
    assert one.found(2) == [(1, 2), (2, 3), (4, 5), (6, 7)]
    assert one.near(2) == [(2, 3), (4, 5), (6, 7)]
    assert one.near(2, reference=96.0) == [(4, 5), (6, 7)]  # 104 is more than 7 % above 96
    assert one.near(2, reference=80.0) == [(6, 7)]  # the end always is judged


def test_an_earlier_point_counts_from_when_it_is_recommended() -> None:
    """After evaluations 2, 4, 6 and 7; a point of the last batch counts from its own evaluation on."""
    scores = [101.0, 150.0, 104.0, 120.0, 101.0, 140.0, 100.0]
    one = judging.Search("gp-recommended", 0, list("abcdefg"), scores, [0, 2, 0, 0])
    assert one.found(2) == [(0, 1), (2, 3), (0, 6)]
    later = one._replace(recommended=[1, 2, 5, 4])
    assert later.found(2) == [(1, 2), (2, 3), (5, 6), (4, 7)]
    assert later.near(2) == [
        (2, 3),
        (5, 6),
        (4, 7),
    ]  # past the first that is near, a far one is judged


def test_recommendations_are_judged_of_the_same_searches(tmp_path: Path) -> None:
    words = ["--engines", "turbo,turbo-recommended", "--output", str(tmp_path)]
    plan = command._plan(search.BenchmarkOptions.read(words))
    assert plan.record("turbo", 3) == plan.record("turbo-recommended", 3)
    assert plan.with_search(3, "turbo") == plan.with_search(3, "turbo-recommended")
    expected = plan.with_search(3, "turbo-expected-recommended")
    assert expected == plan.with_search(3, "turbo-expected") and expected.penalties == "expected"


def runs(value: float, count: int) -> tuple[RunSummary, ...]:
    """The same run so many times."""
    figures = {"ttft_p99_ms[critical]": value, "tokens_per_sec": 1.0, "ttft_p99_ms": 1.0}
    return tuple(run_of(**figures) for _ in range(count))


def raced_plan(engine: str, calls: int, folder: Path) -> Plan:
    """One search with rungs in the tiny space."""
    strategy = tiny_space().strategy
    changed = strategy.search.model_copy(update={"calls": calls})
    return Plan(strategy.model_copy(update={"search": changed}), (engine,), range(1), folder)


def test_a_search_with_rungs_counts_runs_up_to_what_is_asked(tmp_path: Path) -> None:
    """Two points on 4 seeds, the better one on 16 and 64: 8, 20, 68 runs, and 80 with more of the other."""
    space = tiny_space()
    points: list[tuple[object, ...]] = [(5.0, 700, 1), (6.0, 800, 1)]

    def plan(calls: int) -> Plan:
        return raced_plan("ensemble-raced", calls, tmp_path)

    record = record_of(plan(8), space, "ensemble-raced", 0)
    record.begin()
    record.add([PointRuns(points[0], runs(20.0, 4)), PointRuns(points[1], runs(10.0, 4))])
    for count, call, value in ((12, 1, 10.0), (48, 1, 10.0), (12, 0, 20.0)):
        record.add([PointRuns(points[call], runs(value, count), call)])
    (whole,) = judging.searches(plan(8), space)
    (part,) = judging.searches(plan(4), space)
    assert whole.evaluations == 5 and part.evaluations == 4
    for found in (whole, part):
        assert found.end == 1 and found.found(8) == [Found(1, 1)]


def test_by_a_model_a_search_stands_where_no_point_goes_on(tmp_path: Path) -> None:
    """Points 0 to 3 on 4 seeds; point 1 goes on after the first two, point 2 after all, which is the end.

    After 20 runs point 1 has 16 of its own and lacks 240: 260 runs are 17 evaluations.
    The model's answers are those of a file; one that is missing would be made by the model.
    """
    space, engine = tiny_space(), "denoised-raced-recommended"
    plan = raced_plan(engine, 32, tmp_path)
    assert plan.with_search(0, engine).search.rungs == (4, 16, 64)
    assert len(set(plan.with_search(0, engine).seeds)) == 256
    record = record_of(plan, space, engine, 0)
    record.begin()
    points: list[tuple[object, ...]] = [(float(at), 700 + at, 1) for at in (5, 6, 7, 8)]
    record.add([PointRuns(point, runs(20.0, 4)) for point in points[:2]])  # 8 runs
    record.add([PointRuns(points[1], runs(20.0, 12), 1)])  # 20
    record.add([PointRuns(point, runs(10.0, 4)) for point in points[2:]])  # 28
    for count in (12, 48, 192):  # 40, 88, 280
        record.add([PointRuns(points[2], runs(10.0, count), 2)])
    answers = [[20, 0, 1], [280, 256, 2]]
    path = plan.record(engine, 0).with_suffix(".places")
    path.write_text("".join(json.dumps(one) + "\n" for one in answers))
    (found,) = judging.searches(plan, space)
    assert found.stood == [Found(1, 17), Found(2, 32)] and found.end == 2
    assert path.read_text().count("\n") == 2  # no other answer was asked for


def test_judged_points_of_other_engines_stand_in_the_same_table(tmp_path: Path) -> None:
    both = table()
    ours, theirs = (both[both["engine"] == name] for name in ("ensemble", "turbo"))
    path = tmp_path / "judged.csv"
    theirs.to_csv(path, index=False)
    assert joined(ours, path)["engine"].tolist() == ["turbo"] * 20 + ["ensemble"] * 30
    assert summary_of(joined(ours, path), 1.0).set_index("engine").loc["turbo", "near"] == 9
    for points, problem in (
        (theirs, "it has turbo, too"),
        (ours.assign(reference=99.0), "by another reference or on other seeds"),
        (ours.assign(score=1.0), "there is no column score"),
    ):
        with pytest.raises(ConfigError, match=problem):
            joined(points, path)


def made(engine: str, state: int, rows: list[tuple[int, float]]) -> list[dict[str, object]]:
    return [
        {"engine": engine, "random_state": state, "evaluation": at, "is_end": (at, difference) == rows[-1],
         "calls": 200, "reference": 100.0, "difference": difference, "standard_error": 0.3}
        for at, difference in rows
    ]  # fmt: skip


def table() -> pd.DataFrame:
    rows = []
    for state in range(10):
        rows += made("ensemble", state, [(20, 3.0), (40 + state, 0.5), (150, 0.4)])
        rows += made("turbo", state, [(60 + state, 2.0), (120 + state, 0.9 if state else 1.2)])
    return pd.DataFrame(rows)


def test_the_tolerance_is_never_finer_than_the_standard_error() -> None:
    assert tolerance_of(table()) == (100.0, 1.0, 0.3)
    assert tolerance_of(table().assign(standard_error=1.4)) == (100.0, 1.4, 1.4)


def test_a_summary_counts_ends_and_evaluations() -> None:
    rows = summary_of(table(), 1.0).set_index("engine")
    assert rows["near"].tolist() == [10, 9] and rows["searches"].tolist() == [10, 10]
    assert rows["needed"].tolist() == ["44.5", "125.5"]
    assert rows["needed_high"]["turbo"] == "129" and rows["needed_low"]["ensemble"] == "41"
    assert rows["near_at_50"].tolist() == [10, 0] and rows["near_at_200"].tolist() == [10, 9]


def test_a_point_counts_until_a_better_one_of_the_search_is_worse() -> None:
    one = pd.DataFrame(made("gp", 0, [(10, 0.5), (30, 2.0), (90, 0.1)]))
    assert [is_near_at(one, at, 1.0) for at in (9, 10, 29, 30, 90)] == [
        False, True, True, False, True,
    ]  # fmt: skip


def test_the_bar_wants_reliability_and_two_thirds_of_the_evaluations() -> None:
    summary = summary_of(table(), 1.0)
    assert bar_lines(summary)[0].endswith("the bar is met.")
    for column, value in (("near", 8), ("needed", "90"), ("needed", ">200")):
        worse = summary.copy()
        worse.loc[worse["engine"] == "ensemble", column] = value
        assert bar_lines(worse)[0].endswith("the bar is not met.")
    assert not bar_lines(summary[summary["engine"] == "turbo"])
    assert not bar_lines(summary[summary["engine"] == "ensemble"])


def test_every_engine_of_ours_has_a_line_against_the_best_rival() -> None:
    ours = table().query("engine == 'ensemble'").assign(engine="denoised-recommended")
    lines = bar_lines(summary_of(pd.concat([table(), ours]), 1.0))
    assert [line.split(":")[0] for line in lines] == [
        "ensemble against turbo", "denoised-recommended against turbo",
    ]  # fmt: skip
    assert ratio_line(
        pd.concat([table(), ours]), "denoised-recommended", "turbo", 1.0, 1
    ).startswith("Evaluations of denoised-recommended over those of turbo, 10 pairs: 0.35 ")


# --- the command ----------------------------------------------------------------------------------


def test_more_pairs_decide_oftener() -> None:
    """Pairs whose ratio is 0.5 for sure, pairs that are equal, and pairs of which most are censored."""
    sure, equal = [50.0, 60.0, 40.0], [100.0, 120.0, 80.0]
    assert share_below([sure, equal], 200.0, 8, 0.95) == 1.0
    assert share_below([equal, equal], 200.0, 8, 0.95) == 0.0
    ours, theirs = [60.0, 70.0, 80.0, 50.0, 65.0], [70.0, math.inf, math.inf, 60.0, math.inf]
    few, many = (share_below([ours, theirs], 200.0, pairs, 0.95) for pairs in (10, 80))
    assert few < many


def test_wrong_input_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = ["--output", str(tmp_path)]
    (tmp_path / "ends.csv").write_text("engine,random_state,score\ngp,1,70.0\n")
    for given, problem in (
        (["--engines", "magic"], "--engines: 'magic' is unknown"),
        (["--report"], "has no searches of 200 evaluations yet"),
        (["--strategy", "joint_all_layers", "--scan", "offload=1:2"], "--scan: 'offload=1:2' is not"),
        (["--strategy", "iter01_priority_cascade", "--choose"], "has no searches yet"),
        (["--ends", str(tmp_path / "ends.csv")], "there is no column base_critical"),
        (["--repetitions", "0"], "--repetitions: got 0"),
        (["--first-repetition", "100000"], "--first-repetition: the last random state would be"),
    ):  # fmt: skip
        assert search.main([*given, *output]) == 2
        assert problem in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.lenient_promotion  # jax.numpy promotes implicitly in what recommends
def test_searches_are_recorded_judged_and_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(judging, "BEST_FILE", tmp_path / "best.json")
    (tmp_path / "tiny.yaml").write_text(BRANCHED)
    given = [
        "--strategy",
        str(tmp_path / "tiny.yaml"),
        "--engines",
        "random,sobol,sobol-recommended",
        "--repetitions",
        "2",
    ]
    given += ["--calls", "6", "--batch", "2", "--judging-seeds", "16", "--output", str(tmp_path)]
    assert search.main(given) == 0
    folder = tmp_path / "tiny"
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert len(before) == 4 and search.main(given) == 0
    assert before == {file.name: file.read_bytes() for file in folder.iterdir()}
    assert search.main([*given, "--choose"]) == 0
    chosen = json.loads((tmp_path / "best.json").read_text())["tiny"]
    assert chosen["seeds"] == "3000000 to 3000015" and chosen["chosen_from"] == 4
    assert search.main([*given, "--report"]) == 0
    assert "near enough is" in capsys.readouterr().out
    points = pd.read_csv(folder / "judged.csv")
    ends = points[points["is_end"]]
    assert ends[["engine", "random_state"]].to_numpy().tolist() == [
        ["random", 0], ["random", 1], ["sobol", 0], ["sobol", 1],
        ["sobol-recommended", 0], ["sobol-recommended", 1],
    ]  # fmt: skip
    for _, row in points[~points["engine"].str.endswith("recommended")].iterrows():
        record = folder / f"{row['engine']}_{row['random_state']:02d}.jsonl"
        lines = map(json.loads, record.read_text().splitlines()[1:])
        batches = [json.loads(line["entry"]) for line in lines]
        tried = [one["point"] for batch in batches for one in batch]
        assert row.tolist()[-3:] == tried[row["evaluation"] - 1]
    is_reference = (points[points.columns[-3:]] == chosen["point"]).all(axis=1)
    assert is_reference.any() and (points.loc[is_reference, "difference"] == 0).all()
    draw(points, tmp_path / "again.png", "tiny", tolerance_of(points)[1])
    assert (tmp_path / "again.png").read_bytes() == (folder / "reliability.png").read_bytes()
    ends.drop(columns="score").rename(columns={"search_score": "score"}).to_csv(
        tmp_path / "ends.csv", index=False
    )
    assert search.main([*given, "--ends", str(tmp_path / "ends.csv")]) == 0
    again = pd.read_csv(folder / "judged_ends.csv")
    assert again["difference"].tolist() == ends["difference"].tolist()


@pytest.mark.parametrize(
    ("name", "space"), [("iter08_token_budget", "iteration 8"), ("joint_all_layers", "joint")]
)
def test_the_shipped_ends_are_those_that_were_published(name: str, space: str) -> None:
    """Each end of the table of searches has a row; the counts near enough are the page's."""
    folder, page = Path("benchmarks/results"), Path("docs/decisions/search-trials.md").read_text()
    points = pd.read_csv(folder / f"search_{name}_judged_ends.csv")
    ends = pd.read_csv(folder / f"search_{name}_ends.csv")
    assert points["random_state"].tolist() == ends["random_state"].tolist()
    assert points["search_score"].tolist() == ends["score"].tolist()
    for _, row in _of_ends(points).iterrows():
        share = f"{100 * row['near_low']:.0f} to {100 * row['near_high']:.0f} %"
        words = f"| `{row['engine']}` | {space} | {row['near']} of {row['searches']}, {share} |"
        assert words in page


def _of_ends(points: pd.DataFrame) -> pd.DataFrame:
    points = points.assign(is_end=True, evaluation=1, calls=1)
    return summary_of(points, tolerance_of(points)[1])


@pytest.mark.parametrize(
    "rival, judged, strategy, looks",
    [
        ("turbo", "", "iter08_token_budget", "3"),
        ("turbo", "", "joint_all_layers", "2"),
        ("turbo-raced-expected-recommended", "", "joint_all_layers", "2"),
        ("turbo-raced-expected-recommended", "_second", "iter08_token_budget", "3"),
    ],
)
def test_the_report_of_judged_points_that_ship_is_what_the_page_says(
    rival: str,
    judged: str,
    strategy: str,
    looks: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    engines, output = f"denoised-raced-expected-recommended,{rival}", str(tmp_path)
    fresh = f"benchmarks/results/search_{strategy}_fresh"
    tables = ",".join(f"{fresh}{each}_judged.csv.xz" for each in dict.fromkeys(["", judged]))
    given = ["--engines", engines, "--strategy", strategy, "--saved", tables]
    given += ["--looks", looks, "--output", output]
    assert search.main(given) == 0
    lines = capsys.readouterr().out.splitlines()
    said = [line for line in lines if line.startswith(("Evaluations of", "Ends of"))]
    page = Path("docs/results/search.md").read_text()
    assert len(said) == 2 and all(line in page for line in said)
    assert search.main(["--engines", "random", *given[2:]]) == 2
    assert "has no row of random" in capsys.readouterr().err


def test_the_plan_of_the_fresh_states_is_the_one_that_was_frozen() -> None:
    plan = Path(search.__file__).with_name("fresh_states.yaml").read_bytes()
    decisions = (Path(search.__file__).parents[2] / "docs/decisions/search-runs.md").read_text()
    assert f"`{hashlib.sha256(plan).hexdigest()}`" in decisions

"""Rules, counts, sentences and tables of a map, on made-up numbers."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from blis_jax.core.outcome import Outcome
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import json_text
from blis_jax.reports.drawing import save
from blis_jax.reports.page import page
from blis_jax.reports.render import text
from blis_jax.reports.words import metric_words
from blis_jax.statistics.paired import difference
from sweeps.robustness.cells import make_axes
from sweeps.robustness.document import findings_of, title_of, to_document
from sweeps.robustness.figure import (
    MapView,
    best_change,
    constraint_words,
    picture,
    read_view,
)
from sweeps.robustness.report import (
    by_axis,
    cell_table,
    differences,
    recommendation_rules,
    summary_lines,
)
from sweeps.robustness.rules import rules_of, shown
from sweeps.robustness.verdict import recommend
from tests.support.findings_forms import assert_all_forms_agree
from tests.sweeps.robustness.made_map import cell, made_map

BASE = (270.0, 265.0, 17_000.0)
FASTER, SLOWER = (90.0, 445.0, 17_000.0), (400.0, 265.0, 17_000.0)
RATES, BLOCKS, SHAPES = (
    (500.0, 1000.0, 2000.0, 3000.0),
    (2000, 3000, 132139),
    ("mixed", "multiturn"),
)


@pytest.fixture(scope="module")
def dataset():  # type: ignore[no-untyped-def]
    """Tuned wins with 3,000 blocks and more unless turns are many; with fewer, it crashes at 3,000/s."""
    cells = []
    for rate, blocks, shape in itertools.product(RATES, BLOCKS, SHAPES):
        further = {"rate": rate, "kv_blocks": blocks, "shape": shape}
        tuned = SLOWER if shape == "multiturn" or blocks < 3000 else FASTER
        if blocks == 2000 and rate == 3000:
            further["tuned_outcome"] = Outcome.REFERENCE_CRASH
        cells.append(cell(BASE, tuned, **further))
    cells.sort(key=lambda one: (one["rate"], one["kv_blocks"]) != (2000.0, 132139))
    return made_map(cells)


@pytest.fixture(scope="module")
def verdicts(dataset):  # type: ignore[no-untyped-def]
    return recommend(dataset)


def test_the_tree_says_the_regimes_that_were_made(verdicts) -> None:  # type: ignore[no-untyped-def]
    rules = recommendation_rules(verdicts, 3)
    tuned = [rule for rule in rules.leaves if rule.label == "tuned"]
    assert len(tuned) == 1 and tuned[0].num_cells == tuned[0].num_right == 8
    assert set(map(str, tuned[0].where)) in (
        {"KV blocks ≥ 3,000 per instance", "workload shape is mixed"},
        {"KV blocks ≥ 3,000 per instance", "workload shape is not multiturn"},
    )
    assert sum(rule.num_cells for rule in rules.leaves) == len(RATES) * len(BLOCKS) * len(SHAPES)
    assert rules.accuracy == pytest.approx(1.0, abs=0.1)
    assert rules.accuracy_of_most_frequent == pytest.approx(16 / 24)


def test_a_deeper_bound_replaces_a_looser_one() -> None:
    cells = [cell(BASE, BASE, rate=float(rate)) for rate in range(1, 41)]
    places = recommend(made_map(cells))
    labels = ["low" if rate <= 10 else "middle" if rate <= 30 else "high" for rate in range(1, 41)]
    rules = rules_of(places, labels, depth=2)
    words = {rule.label: rule.words() for rule in rules.leaves}
    below, above = "arrival rate < 31 requests/s", "arrival rate ≥ 11 requests/s"
    assert words["low"] == below.replace("31", "11") and words["high"] == above.replace("11", "31")
    assert words["middle"] in (f"{below} and {above}", f"{above} and {below}")


def test_labels_without_pattern_have_no_more_accuracy_than_the_most_frequent() -> None:
    cells = [cell(BASE, BASE, rate=float(rate)) for rate in range(1, 101)]
    labels = np.random.default_rng(0).choice(["a", "b"], 100, p=[0.8, 0.2]).tolist()
    rules = rules_of(recommend(made_map(cells)), labels, depth=3)
    assert rules.accuracy <= rules.accuracy_of_most_frequent + 0.02


@pytest.mark.parametrize("labels", [["a"] * 12, ["a", "b", "a"]])
def test_no_tree_where_there_is_nothing_to_tell(labels: list[str]) -> None:
    cells = [cell(BASE, BASE, rate=float(rate + 1)) for rate in range(len(labels))]
    rules = rules_of(recommend(made_map(cells)), labels)
    assert [rule.words() for rule in rules.leaves] == ["everywhere"]
    assert np.isnan(rules.accuracy)


def test_counts_by_axis(verdicts) -> None:  # type: ignore[no-untyped-def]
    table = by_axis(verdicts).set_index(["axis", "value"])
    blocks = table.loc[("kv_blocks", 3000)]
    assert (blocks["cells"], blocks["baseline"], blocks["tuned"], blocks["none"]) == (8, 4, 4, 0)
    assert table.loc[("shape", "multiturn"), "tuned"] == 0
    assert table.loc[("shape", "mixed"), "median change of tuned, %"] == pytest.approx(
        -66.67, abs=0.1
    )


def test_sentences_say_who_wins_where_and_what_fails(verdicts) -> None:  # type: ignore[no-untyped-def]
    said = "\n".join(summary_lines(verdicts, recommendation_rules(verdicts, 3)))
    assert "in 24 cells: baseline 16 (67 %), tuned 8 (33 %), undecided 0 (0 %)" in said
    assert "better in 8 cells, worse in 14, not separated in 0" in said
    assert (
        "decode tokens per second at least 95 % of that of baseline: kept by tuned wherever it"
        in said
    )
    assert "tuned fails in 2 cells (2 runs REFERENCE_CRASH)" in said
    assert "rate ≥ 3,000" in said
    assert "arrival rate 2,000 requests/s, CV of arrivals 2, KV blocks 132,139 per instance" in said
    assert "surely reversed in 14 cells" in said
    assert "tuned where" in said and "8 of 8 cells (100 %)" in said


def test_the_answer_has_the_same_numbers_in_all_forms(verdicts) -> None:  # type: ignore[no-untyped-def]
    found = findings_of(verdicts, recommendation_rules(verdicts, 3))
    assert_all_forms_agree(found)
    lines = dict(found.answer.lines())
    assert lines["Asked"].startswith("Does tuned beat baseline in")
    assert lines["Verdict"] == "best to take: baseline in 16, tuned in 8 of 24 cells."
    short = text(found)
    assert "tuned fails in 2 cells" in short and "better in 8 cells" in short
    assert "surely reversed in 14 cells" not in short
    assert "surely reversed in 14 cells" in " ".join(text(found, has_all=True).split())


def test_a_map_of_goodput_says_what_it_counts(verdicts) -> None:  # type: ignore[no-untyped-def]
    assert "Goodput counts" not in text(findings_of(verdicts, recommendation_rules(verdicts, 3)))
    targets = json.dumps({"critical": {"ttft_ms": 100.0}})
    counted = verdicts.assign_attrs(objective="goodput_rps", slo_targets=targets)
    found = findings_of(counted, recommendation_rules(counted, 3))
    assert "critical TTFT ≤ 100 ms" in text(found)


def test_the_document_and_the_table_say_the_same(verdicts, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    rules = recommendation_rules(verdicts, 3)
    document = json.loads(json_text(to_document(verdicts, rules, summary_lines(verdicts, rules))))
    assert document["recommended"] == {"baseline": 16, "tuned": 8, "undecided": 0, "none": 0}
    table = cell_table(verdicts)
    assert len(table) == len(document["cells"]) == 24
    row = table[(table["rate"] == 3000) & (table["kv_blocks"] == 2000)].iloc[0]
    assert row["tuned: failures"] == "completed:7 reference_crash:1"
    assert row["recommended"] == "baseline" and np.isnan(row["tuned: change %"])
    assert table["baseline: ttft_p99_ms[critical]"].to_numpy() == pytest.approx(270.0)
    crashed = [one for one in document["cells"] if one["tuned: failures"]]
    assert len(crashed) == 2 and crashed[0]["tuned: change %"] is None


def test_differences_are_those_of_compare(dataset) -> None:  # type: ignore[no-untyped-def]
    found = differences(dataset)
    first, second = dataset["ttft_p99_ms"].values[4, :, :, 2]
    one = difference(first, second)
    at = found.isel(cell=4, strategy=0).sel(slo_class="sheddable")
    assert at["ttft_p99_ms_absolute"].values.tolist() == [
        one.absolute.mean,
        one.absolute.low,
        one.absolute.high,
    ]
    assert at["ttft_p99_ms_verdict"] == one.verdict
    assert found["tokens_per_sec_percent"].dims == ("cell", "strategy", "figure")
    assert found.attrs["first"] == "baseline"


def test_the_map_is_drawn(verdicts, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    rules = recommendation_rules(verdicts, depth=2)
    assert_all_forms_agree(findings_of(verdicts, rules, view=MapView()))
    found = findings_of(verdicts, rules, view=MapView())
    shown = page(found, title_of(verdicts), "the command", {})
    parts = ('<dl id="answer">', '<figure class="map"', "<table>", 'id="command"')
    assert [*map(shown.index, parts)] == sorted(map(shown.index, parts))
    path = tmp_path / "map.png"
    save(picture(verdicts, MapView()), path)
    assert path.read_bytes().startswith(b"\x89PNG")
    view = MapView("rate", "shape", "arrival_cv", "kv_blocks")
    save(picture(verdicts.isel(cell=slice(0, 1)), view), path)


def test_the_colour_is_of_the_best_other_strategy() -> None:
    names = ("baseline", "a", "b")
    entries = {name: {"means": BASE} for name in names}
    cells = [
        entries | {"a": {"means": (135.0, *BASE[1:])}, "b": {"means": (540.0, *BASE[1:])}},
        entries | {name: {"means": BASE, "outcome": Outcome.LIVELOCK} for name in ("a", "b")},
    ]
    changes = best_change(recommend(made_map(cells, names)))
    assert changes[0] == pytest.approx(-50.0) and np.isnan(changes[1])


@pytest.mark.parametrize(
    ("map_axes", "facets", "problem"),
    [
        ("kv,rate", "shape,instances", "--map-axes: 'kv' is not an axis"),
        ("rate", "shape,instances", "does not name two axes"),
        ("rate,kv_blocks", "shape,rate", "name an axis twice"),
        ("shape,kv_blocks", "rate,instances", "rate has 9 values, and 8 columns"),
    ],
)
def test_bad_views_are_refused(map_axes: str, facets: str, problem: str) -> None:
    axes = make_axes({"rate": "1,2,3,4,5,6,7,8,9"})
    with pytest.raises(ConfigError, match=problem):
        read_view(map_axes, facets, axes)
    assert read_view("kv-blocks,rate", "shape,instances", axes) == MapView()


def test_metrics_and_constraints_have_words() -> None:
    assert metric_words("ttft_p99_ms[critical]") == "TTFT P99 of critical requests"
    assert metric_words("scheduling_delay_mean_ms") == "mean scheduling delay"
    assert metric_words("num_preemptions") == "num preemptions"
    words = constraint_words("ttft_p99_ms[sheddable]<=200%", "a")
    assert words == "TTFT P99 of sheddable requests at most 200 % of that of a"
    assert constraint_words("goodput_rps>=100", "a") == "goodput at least 100"
    assert [shown(value) for value in (6910.42048, 132139, 0.5, "mixed")] == [
        "6,910.42",
        "132,139",
        "0.5",
        "mixed",
    ]


def test_cells_in_which_the_constraints_decide_are_counted() -> None:
    beaten = (90.0, 900.0, 17_000.0)
    verdicts = recommend(made_map([cell(BASE, beaten), cell(BASE, FASTER), cell(BASE, SLOWER)]))
    said = "\n".join(summary_lines(verdicts, recommendation_rules(verdicts, 3)))
    assert "In 1 cells a strategy is surely ahead of the recommended one" in said
    assert "broken by tuned in 1 of 3 cells" in said

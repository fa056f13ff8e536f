"""`sweeps.select` at a tiny size: a winner, constraints, fresh seeds, finalists of a search, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from blis_jax.reports.render import text
from sweeps.compare.selection import finalist_texts
from sweeps.compare.selection_report import findings_of
from sweeps.select import main
from tests.support.findings_forms import assert_all_forms_agree
from tests.sweeps.busy import result

METRIC = "ttft_mean_ms[critical]"
QUICK = (
    "--num-requests",
    "60",
    "--rng",
    "jax",
    "--fresh-seeds",
    "20",
    "--quiet",
    "--metric",
    METRIC,
)


def select(folder: Path, *words: str) -> int:
    return main([*words, *QUICK, "--output", str(folder / "out.json")])


def test_the_winner_is_compared_on_seeds_that_did_not_choose_it(
    arms: tuple[str, str], tmp_path: Path
) -> None:
    words = (f"base={arms[0]}", f"priority={arms[1]}", "--indifference", "1")
    constraint = ("--constraint", "requests_per_s>=50%")
    assert select(tmp_path, *words, *constraint) == 0
    document = result(tmp_path)
    assert document["winner"] == "priority" and document["is_over"]
    base, priority = document["arms"]
    assert base["worse_than"] == "priority" and priority["constraints"] == "kept"
    assert base["num_seeds"] == len(
        document["seeds"]
    )  # the first arm is the measure of constraints
    fresh = document["fresh"]
    assert not set(fresh["seeds"]) & set(document["seeds"]) and len(fresh["seeds"]) == 20
    first = fresh["differences"][0]
    assert first["metric"] == METRIC and first["verdict"] == "better" and first["num_pairs"] == 20
    found = findings_of(document)
    assert_all_forms_agree(found)
    assert document["answer"] == found.answer.to_json()
    said = text(found)
    assert "priority is the best of those that keep the constraints" in said
    assert "On 20 fresh seeds" in said and "Goodput counts" not in said
    kept = findings_of({**document, "constraints": ["goodput_rps >= 50%"]})
    assert "critical TTFT ≤ 100 ms" in text(kept)


def test_what_cannot_be_told_apart_is_left(arms: tuple[str, str], tmp_path: Path) -> None:
    words = (f"a={arms[0]}", f"b={arms[0]}:slo_priority_bridge=false", "--indifference", "0.001")
    assert select(tmp_path, *words, "--most-seeds", "20") == 0
    document = result(tmp_path)
    assert not document["is_over"] and document["winner"] is None and document["fresh"] is None
    assert str(findings_of(document).answer.verdict[0]).startswith("a, b are not told apart")


def test_finalists_are_the_best_points_that_did_not_fail(tmp_path: Path) -> None:
    points = [
        {"parameters": {"max_tokens": 900 + at}, "score": score, "failures": failures}
        for at, (score, failures) in enumerate(
            [(3.0, []), (1.0, []), (0.5, ["LIVELOCK"]), (2.0, [])]
        )
    ]
    path = tmp_path / "search.json"
    path.write_text(json.dumps({"strategy": "iter08_token_budget", "points": [*points, points[1]]}))
    assert finalist_texts(str(path), 2) == [
        "point1=iter08_token_budget:max_tokens=901",
        "point2=iter08_token_budget:max_tokens=903",
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--indifference: say below what a difference does not matter"),
        (("--indifference", "1", "--seeds", "5"), "the first stage has 20 to 2000 seeds"),
        (("--indifference", "1", "--tolerance", "0"), "--tolerance: got 0"),
        (("--indifference", "1", "--most-seeds", "3"), "--most-seeds: got 3"),
        (
            ("--indifference", "1", "--finalists", "3"),
            "--finalists has no meaning without --search",
        ),
        (("--indifference", "1", "--constraint", "much"), "is not METRIC<=LIMIT"),
        (("--indifference", "1", "--search", "no.json"), "no.json"),
    ],
)
def test_what_means_nothing_is_refused(
    arms: tuple[str, str],
    tmp_path: Path,
    words: tuple[str, ...],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert select(tmp_path, *arms, *words) == 2
    assert said in " ".join(capsys.readouterr().err.split())

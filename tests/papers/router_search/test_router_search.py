"""Routers bred against published ones: the winner's rule as a formula, the verdicts, and the page."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest

from blis_jax.policies import registry
from papers.openevolve.experiments import ROUTERS
from papers.pages import ROOT, rows_of
from papers.router_search import contests, page
from papers.router_search.__main__ import main
from sweeps.evolve.formula import NUMBER, SCORER, Formula, go_of, python_of
from tests.support.evolve.cases import cases_of, decided

DATA = ROOT / "papers" / "router_search" / "data"
TABLES = {name: rows_of(DATA / f"{name}.csv") for name in contests.TABLES}


@pytest.mark.lenient_promotion
def test_the_winner_s_rule_as_a_formula_decides_as_the_winner(tmp_path: Path) -> None:
    path = tmp_path / "rule.py"
    path.write_text(python_of(contests._winner()))
    rule = registry.find("routing", f"{path}:route")
    cases = cases_of(2, 400, 4)
    is_plain = np.abs(cases.weights - 0.5).max(axis=1) < 1e-9
    ours, (theirs, drawn) = (
        decided(rule, cases)[0],
        decided(registry.find("routing", f"{ROUTERS}:winner"), cases),
    )
    is_same = (ours == theirs) | ~is_plain | (drawn > 0)
    assert is_same[is_plain].mean() > 0.9 and (is_plain & (drawn == 0)).sum() > 20


def test_the_page_is_what_the_command_writes(tmp_path, capsys) -> None:
    path, picture = tmp_path / "page.md", tmp_path / "curve.png"
    assert main(["--saved", "--page", str(path), "--picture", str(picture)]) == 0
    assert path.read_text() == (ROOT / "docs" / "results" / page.FILE).read_text()
    assert picture.stat().st_size > 5000
    assert "the published winner" in capsys.readouterr().out


def test_programs_of_the_page_are_those_of_their_formulas() -> None:
    for row in TABLES[contests.FOUND]:
        formula = Formula.read(row["formula"])
        assert (python_of(formula), go_of(formula)) == (row["python"], row["go"])
        assert len(page._body(row["python"]).split("\n")) <= 14


@pytest.mark.slow
def test_a_formula_that_is_the_router_to_beat_gains_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contests, "JUDGED", range(5000, 5003))
    contest = next(one for one in contests.contests(None, tmp_path) if one.name == "it08_opt")
    weights = [weight for _, weight in contest.task.base.scorers()]
    parts = [
        Formula(
            "times",
            (Formula(NUMBER, number=weight / sum(weights)), Formula(SCORER, number=float(at))),
        )
        for at, weight in enumerate(weights)
    ]
    same = functools.reduce(lambda one, other: Formula("plus", (one, other)), parts)
    found = [{"contest": "it08_opt", "formula": str(same)}]
    rows = contests.judged_again([contest], found)
    assert {row["workload"] for row in rows} == {contests.ALL, "mixed"} and len(rows) == 4
    assert all(
        float(row["change %"]) == 0 and row["verdict"] in ("unclear", "same") for row in rows
    )

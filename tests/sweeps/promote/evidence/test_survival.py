"""The table of what a gain survives: rows, intervals, verdicts; its page in docs/results is what the template makes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from blis_jax.errors import ConfigError
from blis_jax.statistics.intervals import Estimate
from sweeps.promote.evidence import survival
from sweeps.promote.evidence.concerns import Concern, concern_named
from sweeps.promote.evidence.survival import (
    LARGER,
    NO_EFFECT,
    REVERSED,
    SMALLER,
    SURVIVES,
    UNCLEAR,
    SeedRuns,
    page_of,
    survival_of,
    survivals_of,
    write_page,
    written_on,
)
from sweeps.promote.promotion import Promotion
from sweeps.promote.store import render
from sweeps.strategies.arms import arm_of
from tests.support.recorded.reference_data import REPO_ROOT

PAGE = REPO_ROOT / "docs" / "results" / "survival.md"
METRIC = "ttft_p99_ms"
NOISE = np.array([0.0, 1.0, -1.0, 0.5, -0.5, 0.2])


def verdicts(**arms: tuple[float, float]) -> Mapping[str, str]:
    """Of made-up means of baseline and strategy, by concern."""
    pairs = {
        name: {METRIC: (before + NOISE, after + NOISE[::-1])}
        for name, (before, after) in arms.items()
    }
    every = [Concern(name, "", name, "made", lambda config, _: config) for name in arms]
    rows = survival._rows(every, pairs, {}, (METRIC,))
    return {row.name: row.verdict for row in rows}


def test_verdicts_of_the_rows() -> None:
    found = verdicts(
        none=(100, 50),
        same=(100, 50),
        less=(100, 80),
        more=(100, 20),
        lost=(100, 100.2),
        worse=(100, 150),
    )
    assert found == {
        "none": SURVIVES, "same": SURVIVES, "less": SMALLER, "more": LARGER, "lost": UNCLEAR, "worse": REVERSED,
    }  # fmt: skip


def test_equal_runs_have_no_effect() -> None:
    pairs = {"none": {METRIC: (100 + NOISE, 100 + NOISE)}}
    rows = survival._rows(
        [Concern("none", "", "none", "made", lambda c, _: c)], pairs, {}, (METRIC,)
    )
    assert [row.verdict for row in rows] == [NO_EFFECT]


def test_a_small_table_is_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two concerns that share the compiled programs of the runs without one, and two that have no runs."""
    chosen = tuple(concern_named(name) for name in ("mixed-gpus", "lora-affinity"))
    one_alone = Concern(
        "alone", "x", "One instance", "cannot be", lambda c, _: c.replace(num_instances=0)
    )
    monkeypatch.setattr(survival, "concerns", lambda: (*chosen, one_alone))
    treatment = "short=iter00_baseline:max_num_scheduled_tokens=400"
    promotion = Promotion(
        treatment, arm_of(treatment), arm_of("iter00_baseline"), "llm-d-router@0.10.0"
    )
    table = survival_of(promotion, (1, 2, 3), 60)
    assert [row.name for row in table.rows] == ["none", "mixed-gpus", "lora-affinity", "alone"]
    assert table.main == "ttft_p99_ms" and "ttft_p99_ms[critical]" in table.metrics
    none, mixed, lora, alone = table.rows
    assert none.against_none is None and isinstance(mixed.against_none, Estimate)
    assert mixed.changes["ttft_p99_ms"].num_seeds == 3
    assert mixed.means[0] > none.means[0] > 0 and len(mixed.means) == 2
    assert (
        lora.verdict == "not simulated yet: no scene has requests for adapters" and not lora.changes
    )
    assert "num_instances" in alone.verdict
    assert json.dumps(table.plain(), allow_nan=False)
    page = render("survival.md.j2", table=table, command="made")
    assert (
        "| Adapters have a place: no scene has requests for adapters | – | – | not simulated yet |"
        in page
    )


def test_several_strategies_have_one_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every configuration is run once; what a person wrote stays when the page is made again."""
    ran = []
    run = SeedRuns.values
    monkeypatch.setattr(
        SeedRuns, "values", lambda self, *given: ran.append(len(self.done)) or run(self, *given)
    )
    promotions = [
        Promotion(text, arm_of(text), arm_of("iter00_baseline"), "llm-d-router@0.10.0")
        for text in (f"iter00_baseline:max_num_scheduled_tokens={size}" for size in (400, 500))
    ]
    page = tmp_path / "page.md"
    write_page(page, promotions, (1, 2, 3), 60, "made", ("mixed-gpus", "lora-affinity"))
    assert len(ran) == 12 and max(ran) == 6  # three configurations, with a concern and without
    found = json.loads(page.with_suffix(".json").read_text(encoding="utf-8"))
    first, second = (table["rows"][0]["changes"][METRIC]["mean"] for table in found["tables"])
    (against,) = (table["rows"][0]["changes"][METRIC]["mean"] for table in found["against_first"])
    assert first != second and against is not None
    text = page.read_text(encoding="utf-8")
    for one in promotions:
        assert f"## `{one.given}`" in text
    assert (
        "| Adapters have a place: no scene has requests for adapters | – | not simulated yet |"
        in text
    )
    begins, ends = (f"<!-- reading:{end} -->" for end in ("begin", "end"))
    marks = f"{begins}\n{ends}"
    assert marks in text
    written = text.replace(marks, f"{begins}\nThe first one is better.\n{ends}")
    page.write_text(written, encoding="utf-8")
    assert page_of(found, "made", written_on(page)) == written


def test_strategies_with_different_workloads_have_no_common_page() -> None:
    promotions = [
        Promotion(text, arm_of(text), arm_of("iter00_baseline"), "llm-d-router@0.10.0")
        for text in ("iter13_class_lead@found", "iter07_multiprefix")
    ]
    with pytest.raises(ConfigError, match="iter07_multiprefix is for workload multiprefix"):
        survivals_of(promotions, (1, 2, 3))


def test_the_shipped_page_is_made_of_its_numbers() -> None:
    table = json.loads(PAGE.with_suffix(".json").read_text(encoding="utf-8"))
    text = PAGE.read_text(encoding="utf-8")
    command = text.split("```")[1].strip()
    assert page_of(table, command, written_on(PAGE)) == text
    assert all(len(one["seeds"]) >= 64 for one in table.get("tables", [table]))

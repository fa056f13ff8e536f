"""The record's rows against what the reference was measured to give, and the figures' numbers."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from papers.record.claims import PublishedClaim
from papers.record.figures import DATA, PaperFigure, draw_one
from papers.record.measures import CLASSES, scalars
from papers.record.published import Classifier
from papers.record.runs import PaperRuns, SettingSample
from papers.record.tables import published_records
from papers.strategy_evolution.figures import FIGURES
from papers.strategy_evolution.record import RECORD
from tests.papers.record.drawn import assert_has_expected_numbers, assert_is_drawn

RESULTS = RECORD.folder / "results"
SHIPPED = RECORD.folder / DATA
SEEDS = RECORD.seeds
MEASURED = Path(__file__).parent / "measured.csv"  # the reference's means of the seeds that ended


def table_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


# --- rows -----------------------------------------------------------------------------------------


def test_shipped_rows_are_what_the_reference_was_measured_to_give() -> None:
    """Values, gaps and changes of every claim follow from the table of measured means."""
    measured = {row["scenario"]: row for row in table_of(MEASURED)}
    shipped = table_of(RESULTS / "published.csv")
    claims = RECORD.claims
    assert len(shipped) == len(claims)
    num_checked = 0
    for claim, row in zip(claims, shipped, strict=True):
        assert row["claim"] == claim.label
        if not isinstance(claim, PublishedClaim) or row["class"] == "reference crash":
            continue
        if not {claim.at, claim.against or claim.at} <= set(measured):
            continue  # one of ours, without a counterpart
        column = {"gap": "gap", "reject_rate": "rejected"}.get(claim.of)
        column = column or claim.of.partition("[")[2][:-1] or claim.of
        if column == "scheduling_delay_p99_ms":
            continue  # not in that table
        value = float(measured[claim.at][column])
        if claim.is_change and claim.against is not None:
            value = 100 * (value / float(measured[claim.against][column]) - 1)
        if claim.of == "reject_rate":
            value /= 10  # of 1,000 requests, in %
        ours = float(row["ours"].split()[0])
        assert ours == pytest.approx(value, abs=0.06, rel=1e-4), (claim.row, claim.label)
        num_checked += 1
    assert num_checked > 75


def test_reference_crashes_are_shown_as_such() -> None:
    crashed = [
        row for row in table_of(RESULTS / "published.csv") if row["ours"] == "REFERENCE_CRASH"
    ]
    assert {(row["row"], row["settings"]) for row in crashed} == {
        ("7 KV", "it07_kv2000_best"),
        ("9", "it09_kv1500_sloPre1"),
    }


def test_shipped_survival_table_has_every_claim_on_a_thousand_seeds() -> None:
    shipped = table_of(RESULTS / "survival_jax_1000.csv")
    assert [row["claim"] for row in shipped] == [claim.label for claim in RECORD.claims]
    whole = [row for row in shipped if row["low"]]
    assert len(whole) > 80
    for row in whole:
        assert float(row["low"]) <= float(row["mean"]) <= float(row["high"])
    assert {row["verdict"] for row in shipped} >= {"survives", "direction only", "does not survive"}


@pytest.fixture(scope="module")
def recomputed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SettingSample]:
    folder = tmp_path_factory.mktemp("parts")
    return PaperRuns(folder, "reference").get(RECORD.settings.values(), SEEDS, scalars())


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_rows_are_recomputed_to_the_letter(recomputed: dict[str, SettingSample]) -> None:
    records = published_records(Classifier(recomputed, SEEDS, {}, {}).classified(RECORD.claims))
    assert records == table_of(RESULTS / "published.csv")


@pytest.mark.slow
@pytest.mark.golden
@pytest.mark.timeout(3600)
def test_every_run_is_that_of_the_reference(
    recomputed: dict[str, SettingSample], golden_dir: Path
) -> None:
    """TTFT tails by class and the run's figures, of all recorded scenarios of the record."""
    num_checked = 0
    for name, sample in recomputed.items():
        for row, seed in enumerate(SEEDS):
            path = golden_dir / "scheduling" / "scenarios" / f"{name}_s{seed}.json"
            if not path.is_file():
                assert "corrected" in name or sample.outcomes[row] == 16, name  # REFERENCE_CRASH
                continue
            recorded = json.loads(path.read_text())
            for slo_class in CLASSES:
                theirs = recorded["per_slo"][slo_class]["ttft_us"]["p99"] / 1000
                ours = sample.column(f"ttft_p99_ms[{slo_class}]")[row]
                assert ours == pytest.approx(theirs, rel=1e-12), (name, seed)
            for figure in (
                "tokens_per_sec",
                "ttft_p99_ms",
                "e2e_p99_ms",
                "scheduling_delay_p99_ms",
            ):
                ours = sample.column(figure)[row]
                assert ours == pytest.approx(recorded["cluster_json"][figure], rel=1e-12), name
            preemptions = recorded["aggregates"]["preemption_count"]
            assert sample.column("num_preemptions")[row] == preemptions, (name, seed)
            num_checked += 1
    assert num_checked >= 250


# --- figures --------------------------------------------------------------------------------------


@pytest.mark.parametrize("figure", FIGURES, ids=[figure.name for figure in FIGURES])
def test_figure_is_drawn_from_the_shipped_data(figure: PaperFigure, tmp_path: Path) -> None:
    assert_is_drawn(figure, tmp_path)


@pytest.mark.parametrize("figure", FIGURES, ids=[figure.name for figure in FIGURES])
def test_figure_has_the_expected_numbers(figure: PaperFigure) -> None:
    """Numbers that were known before: measured with the reference, or by the record."""
    assert_has_expected_numbers(figure, SHIPPED)


def test_shipped_data_are_small() -> None:
    sizes = [path.stat().st_size for path in SHIPPED.iterdir()]
    assert len(sizes) == len(FIGURES) and sum(sizes) < 1_000_000


def test_missing_data_are_refused_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["rate_sweep", "--data", str(tmp_path), "--output", str(tmp_path / "figure.png")]
    assert draw_one(FIGURES, words) == 2
    said = capsys.readouterr().err
    assert "does not exist" in said and "--figures" in said and said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
    assert draw_one(FIGURES, ["rate_sweep", "--output", str(tmp_path / "figure.pdf")]) == 2
    assert "must end in .png" in capsys.readouterr().err


def test_a_picture_is_replaced_only_when_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.png"
    path.write_bytes(b"mine")
    words = ["rate_sweep", "--output", str(path)]
    assert draw_one(FIGURES, words) == 2
    said = capsys.readouterr().err
    assert "exists; give --overwrite" in said and said.count("\n") == 1
    assert path.read_bytes() == b"mine"
    assert draw_one(FIGURES, [*words, "--overwrite"]) == 0
    assert path.read_bytes() != b"mine"

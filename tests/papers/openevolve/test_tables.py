"""Published numbers of evolved routers: what the saved tables hold, the scores, and the page."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from blis_jax.cluster.config import ClusterConfig
from blis_jax.commands.door.dispatch import main
from blis_jax.core.outcome import Outcome
from blis_jax.metrics.run_summary import RunSummary
from blis_jax.workload.spec import load_builtin, override
from papers.openevolve import experiments, page
from papers.pages import rows_of
from tests.support.recorded.reference_data import SHARED_DIR

ROUTERS = ("round-robin", "least-loaded")
SAVED = Path(page.__file__).parent / "data"
DATA = SHARED_DIR / "data" / "openevolve_blis_router"


def test_all_published_numbers_are_equal_but_those_of_llq() -> None:
    rows = rows_of(SAVED / "figures.csv")
    odd = {(row["set"], row["arm"]) for row in rows if row["equal"] != "true"}
    assert odd == {(experiments.HANDED_OVER, "llq")}
    for row in rows:
        is_equal = math.isclose(float(row["here"]), float(row["published"]), rel_tol=1e-12)
        assert is_equal == (row["equal"] == "true")


def test_scores_follow_from_the_runs() -> None:
    rows = rows_of(SAVED / "scores.csv")
    assert rows and {row["equal"] for row in rows} == {"true"}
    evolved = next(row for row in rows if row["arm"] == "evolved")
    assert float(evolved["high"]) < float(evolved["published"])
    assert float(evolved["low"]) < float(evolved["new seeds"]) < float(evolved["high"])


def runs(mean: float, p95: float) -> list[RunSummary]:
    metrics = dict(zip(experiments.METRICS, (mean, p95), strict=True))
    return [RunSummary(Outcome.COMPLETED, metrics, {})]


def test_the_two_scores() -> None:
    by_workload = {
        "a": {"1_1": runs(100, 300), "evolved": runs(90, 270)},
        "b": {"1_1": runs(50, 150), "evolved": runs(60, 180)},
    }
    assert page.of_hand_over(by_workload, "evolved") == pytest.approx(-5)
    assert page.of_example(by_workload, "evolved") == pytest.approx([-0.5 * 75 - 0.5 * 225])
    found = page.resampled_gain(by_workload, "evolved", num=9)
    np.testing.assert_allclose(found, [-5, -5, -5])


def test_the_saved_page_is_what_the_command_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    assert main(["papers", "openevolve", "--saved", "--page", str(page)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Asked:") and "numbers are equal to the last digit" in shown
    there = Path(__file__).parents[3] / "docs" / "results" / "openevolve.md"
    assert page.read_text(encoding="utf-8") == there.read_text(encoding="utf-8")


def test_data_that_are_not_there_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["papers", "openevolve", "--data", str(tmp_path), "--output", str(tmp_path / "out")]
    assert main(asked) == 2
    assert "no go_runs.json" in capsys.readouterr().err


def test_arms_made_in_parts_are_those_made_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs = {name: ClusterConfig(num_instances=2, routing_policy=name) for name in ROUTERS}
    load = override(load_builtin("mixed"), num_requests=20)
    monkeypatch.setattr(experiments.ArmsOnWorkload, "spec", load)
    group = experiments.ArmsOnWorkload("C", "tiny", tmp_path, (42, 43), configs)

    def ask(folder: str) -> page.ArmsAsk:
        return page.ArmsAsk(group, group.seeds, list(configs), tmp_path / folder)

    whole = ask("whole").runs()
    places = [(key, place) for key, count in ask("a").counts().items() for place in range(count)]
    documents: dict[str, dict[int, object]] = {}
    for own in (places[2:], places[:2]):
        for key, at, made in ask("a").made(own):
            documents.setdefault(key, {}).update(zip(at, made, strict=True))
    joined = ask("joined")
    joined.take({key: [runs[0], runs[1]] for key, runs in documents.items()})
    monkeypatch.setattr("sweeps.runs.experiment.Experiment.each", None)  # nothing is run
    assert joined.runs() == whole
    assert joined.journal().path.read_bytes() == ask("whole").journal().path.read_bytes()


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_dir(), reason="the example's data are not beside the repository")
@pytest.mark.filterwarnings("ignore:.*is a name of version 1")
def test_the_winner_runs_as_published(tmp_path: Path) -> None:
    group = next(one for one in experiments.groups(DATA) if one.set == experiments.HANDED_OVER)
    found = page.ArmsAsk(group, group.seeds, ["evolved"], tmp_path).runs()["evolved"]
    for (seed, metric), wanted in experiments.published(DATA, group, "evolved").items():
        assert found[group.seeds.index(int(seed))].value(metric) == pytest.approx(wanted, rel=1e-12)

"""Recorded runs of August 2026 with LoRA adapters or off-load tiers: every request, step, load and count of transfers,
the printed text, and refusals.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from blis_jax.core.outcome import WHOLE, Outcome
from blis_jax.engine import cluster_params
from blis_jax.records import invariants
from blis_jax.records.record import Status
from blis_jax.results.blis_files import results_document, results_text
from blis_jax.run import main
from tests.support.recorded.adapter_runs import AdapterScenario, differences, scenarios_of
from tests.support.recorded.reference_data import find_golden_dir

pytestmark = pytest.mark.golden

FOLDER = (find_golden_dir() or Path()) / "blis_2026_08_adapters"
FAST = ("lora_uni4_slow_cap2_s42", "off_cpu_small_s42", "off_sata_s42")


def simulated() -> list[Any]:
    """All recorded runs; most are slow only because they are many."""
    return [
        pytest.param(one, id=one.name, marks=[] if one.name in FAST else pytest.mark.slow)
        for one in scenarios_of(FOLDER)
    ]


@pytest.mark.parametrize("scenario", simulated())
def test_equals_reference(scenario: AdapterScenario):
    record, labels = scenario.run()
    assert record.outcome in WHOLE
    assert record.num_open_ties == 0
    assert differences(record, scenario) == []
    assert not any(invariants.violations(record).values())
    recorded, config = scenario.recorded, scenario.cluster
    num_asked = recorded["num_instances"]
    assert results_text(record, labels, config, num_asked=num_asked) == recorded["stdout"]
    assert _in_order(results_document(record, labels)) == _in_order(recorded["metrics_path_json"])


@pytest.mark.slow
def test_blocks_that_come_back_can_save_what_blis_computes_again():
    """Beside a recorded run: fewer tokens are computed, and first tokens come sooner."""
    scenario = next(one for one in scenarios_of(FOLDER) if one.name == "off_nvme_s42")
    saving = dataclasses.replace(scenario.cluster.kv_offload_config, saves_prefill=True)
    record, _ = scenario.run(kv_offload_config=saving)
    assert record.outcome in WHOLE
    assert not any(invariants.violations(record).values())
    requests, theirs = record.requests, scenario.arrays
    assert (requests.status == Status.COMPLETED).all()
    assert requests.cached_tokens_first_sched.sum() > theirs["cached_tokens_first"].sum()
    assert requests.ttft_us.mean() < theirs["ttft_us"].mean()


@pytest.mark.slow
def test_a_run_that_has_used_up_the_drawn_jitter_ends_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_params, "TRANSFER_DRAWS", 4)
    cluster_params._transfer_draws.cache_clear()
    scenario = next(one for one in scenarios_of(FOLDER) if one.name == "off_jitter_s42")
    try:
        record, _ = scenario.run()
    finally:
        cluster_params._transfer_draws.cache_clear()
    assert record.outcome is Outcome.DRAWS_EXHAUSTED


def _in_order(document: dict[str, Any]) -> dict[str, Any]:
    """The document with requests of one microsecond by their ids: BLIS leaves their order open."""
    requests = sorted(document["requests"], key=lambda one: (one["arrived_at"], one["requestID"]))
    return document | {"requests": requests}


def refusals() -> list[Any]:
    cases = json.loads((FOLDER / "refusals.json").read_text(encoding="utf-8"))
    return [pytest.param(case, id=case["name"]) for case in cases if case["exit_code"]]


@pytest.mark.parametrize("case", refusals())
def test_what_the_reference_refuses_is_refused(
    case: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    """In one sentence, and with the exit code of input that cannot be used."""
    monkeypatch.chdir(tmp_path)
    for name, text in case["files"].items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert main(["--profile", "blis-2026-08", *case["args"][1:]]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.strip().splitlines()) == 1


def test_the_set_here_is_large_enough():
    """So that an empty folder does not look like success."""
    assert len(scenarios_of(FOLDER)) >= 20
    assert len(refusals()) == 54

"""Recorded runs of August 2026 with LoRA adapters or off-load tiers: what went in, and what came out of every request,
step, load and wait.
"""

from __future__ import annotations

import functools
import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from blis_jax.cluster.config import AUGUST, ClusterConfig
from blis_jax.commands.cluster_settings import cluster_config
from blis_jax.commands.run.flags import make_parser
from blis_jax.commands.run.requests import names_of_run, with_deadlines
from blis_jax.records.record import RunRecord, Status
from blis_jax.records.step_records import expand_steps
from blis_jax.results.blis_files import Labels, labels_of
from blis_jax.runs.closed_loop import placed, simulate_closed_loop
from blis_jax.runs.many_runs import simulate
from blis_jax.workload.reference.arrays import table_of
from blis_jax.workload.reference.generate import drawn
from blis_jax.workload.spec import load_spec, override
from tests.support.recorded.golden_2026_08 import SIZES, STATUS

_FILES = ("--workload-spec", "--lora-config", "--kv-offload-config", "--defaults-filepath")
_OF_REQUESTS = ("workload_spec", "seed")
TIMED_OUT = "6"  # a status of the recording
LATENCIES = ("sched_delay_us", "ttft_us", "e2e_us")


@dataclass(frozen=True)
class AdapterScenario:
    """A recorded run."""

    folder: Path
    name: str

    @functools.cached_property
    def recorded(self) -> dict[str, Any]:
        """Configuration and printed results."""
        with gzip.open(self.folder / "runs" / f"{self.name}.json.gz") as file:
            return dict(json.load(file))

    @functools.cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """What happened to every request, in every step and at every load."""
        with np.load(self.folder / "runs" / f"{self.name}.npz") as file:
            return dict(file)

    @property
    def words(self) -> list[str]:
        """The command line behind `run`, with the paths of its files."""
        words = list(self.recorded["cli_args"])[1:]
        for at, word in enumerate(words[:-1]):
            if word in _FILES:
                words[at + 1] = str(self.folder / words[at + 1])
        return words

    @property
    def cluster(self) -> ClusterConfig:
        """What the recorded command line describes, read by the package's own options."""
        given = make_parser().given(["--profile", "blis-2026-08", *self.words])
        return cluster_config(
            {key: val for key, val in given.items() if key not in ("workload_spec", "seed")}
        )

    def run(self, **changes: Any) -> tuple[RunRecord, Labels]:
        """The scenario as the engine runs it, with other settings, and what its requests are called."""
        config, seed = self.cluster.replace(**changes), int(self.recorded["seed"])
        given = make_parser().given(self.words)
        spec = load_spec(given["workload_spec"], AUGUST)
        if "horizon" in given:
            spec = override(spec, horizon=given["horizon"])
        workload, gives_up = drawn(spec, seed, None), TIMED_OUT in self.recorded["status_counts"]
        if workload.sessions:
            run = simulate_closed_loop(config, workload, SIZES, seed, gives_up=gives_up)
            names, ids = names_of_run(run), run.request_ids()
            return run.record, labels_of(run.record, run.table, names, spec, ids)
        table, names = table_of(workload, config.block_size_in_tokens)
        table = placed(config, table, names)
        if gives_up:
            table = with_deadlines(table, names)
        record = simulate(config, table, SIZES, seed)
        return record, labels_of(record, table, names, spec)


def differences(record: RunRecord, scenario: AdapterScenario) -> list[str]:
    """Arrays of requests, steps and loads that are not as recorded, with the first difference; empty if all are."""
    theirs, requests = scenario.arrays, record.requests
    is_open = np.isin(requests.status, (Status.WAITING, Status.RUNNING, Status.IN_FLIGHT))
    ours = np.where(
        is_open, Status.WAITING, requests.status
    )  # the recording does not tell these apart
    status = [int(STATUS.get(int(one), -1)) for one in theirs["status"]]
    pairs: list[tuple[str, Any, Any]] = [
        ("arrival_us", requests.arrival_us, theirs["arrival_us"]),
        ("status", ours, np.array(status)),
        ("instance", requests.instance, theirs["instance"]),
        *((name, getattr(requests, name), theirs[name]) for name in LATENCIES),
    ]
    if "num_scheduled" in theirs:  # not where pools split requests
        pairs += [
            ("num_scheduled", requests.num_scheduled, theirs["num_scheduled"]),
            ("preemptions", requests.preemptions, theirs["preemptions"]),
            ("cached", requests.cached_tokens_first_sched, theirs["cached_tokens_first"]),
        ]
    steps = expand_steps(record, int(theirs["block_size"]))
    is_kept = scenario.recorded.get("empty_steps_kept", True) | (steps.step_running > 0)
    pairs.append(("steps", steps.step_running.size, scenario.recorded["num_steps"]))
    pairs += [(name, getattr(steps, name)[is_kept], theirs[name]) for name in steps._fields]
    pairs += _loads(record, scenario) + _transfers(record, scenario)
    return [text for one in pairs if (text := _difference(*one))]


def _loads(record: RunRecord, scenario: AdapterScenario) -> list[tuple[str, Any, Any]]:
    """Ours and the recorded loads and evictions, counted by instance and adapter."""
    theirs, made = scenario.arrays, record.adapters
    if "load_instance" not in theirs:
        return [("loads", made.num_loads.sum() if made else np.int64(0), np.int64(0))]
    assert made is not None
    declared = [one.id for one in scenario.cluster.lora_config.adapters]
    named = [declared.index(str(one)) for one in theirs["adapter_names"]]
    pairs: list[tuple[str, Any, Any]] = []
    for column, ours, is_counted in (
        ("load_adapter", made.num_loads, theirs["load_end_us"] >= 0),
        ("load_evicted", made.num_evictions, theirs["load_evicted"] >= 0),
    ):
        counts = np.zeros_like(ours)
        adapters = np.array([*named, -1])[theirs[column][is_counted]]
        np.add.at(counts, (theirs["load_instance"][is_counted], adapters), 1)
        pairs.append((column, ours.reshape(-1), counts.reshape(-1)))
    return pairs


def _transfers(record: RunRecord, scenario: AdapterScenario) -> list[tuple[str, Any, Any]]:
    """Our counts of transfers and waits, and the recorded ones, by instance."""
    theirs, made = scenario.recorded["instances"], record.offload
    if made is None:
        return [("off-load tiers", theirs[0]["kind"] == "offload", False)]
    pairs: list[tuple[str, Any, Any]] = [
        (name, ours, np.array([one[name] for one in theirs]))
        for name, ours in (
            ("promotions_fired", made.num_fetches),
            ("promotions_failed", made.num_refusals),
            ("deferrals", made.num_deferrals),
            ("mirror_skipped", made.num_skips),
            ("cpu_evictions", made.num_evictions),
            ("reloads", record.instances.cpu_reloads),
            ("offload_misses", record.instances.cpu_misses),
        )
    ]
    jobs = np.array([sum(one["write_jobs"]) + one["promotions_fired"] for one in theirs])
    return [*pairs, ("write_jobs", made.num_transfers, jobs)]


def _difference(name: str, ours: Any, theirs: Any) -> str:
    if np.shape(ours) != np.shape(theirs):
        return f"{name}: {np.size(ours)} entries, recorded {np.size(theirs)}"
    ours, theirs = np.atleast_1d(ours), np.atleast_1d(theirs)
    wrong = np.flatnonzero(ours != theirs)
    if not wrong.size:
        return ""
    at = int(wrong[0])
    return f"{name}: {wrong.size} differ, first [{at}] {ours[at]} != {theirs[at]}"


def scenarios_of(folder: Path) -> list[AdapterScenario]:
    """All recorded runs."""
    rows = json.loads((folder / "index.json").read_text())["runs"]
    return [AdapterScenario(folder, row["name"]) for row in rows]

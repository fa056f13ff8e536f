"""Recorded runs of the reference's revision of August 2026: what went in, what came out, and what is not simulated."""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from blis_jax.cluster.config import AUGUST, ClusterConfig
from blis_jax.commands.cluster_settings import cluster_config
from blis_jax.commands.run.flags import make_parser
from blis_jax.metrics.kv import cache_hit_rates, thrashing_rates
from blis_jax.metrics.reference import cluster_json
from blis_jax.records.record import RunRecord, Status
from blis_jax.records.step_records import expand_steps
from blis_jax.results.blis_files import Labels, labels_of, results_text
from blis_jax.runs.closed_loop import simulate_closed_loop
from blis_jax.runs.many_runs import simulate
from blis_jax.runs.options import Options
from blis_jax.workload.reference.generate import drawn
from blis_jax.workload.spec import load_spec
from blis_jax.workload.table import (
    RequestTable,
    WorkloadNames,
    from_golden,
    tenants_in_order,
    with_timeouts,
)
from papers.pages import hand_over
from tests.support.recorded.reference_data import REPO_ROOT, assert_totals_equal, find_golden_dir

DEFAULT_SEED = 42
# Sizes that serve most runs, so that they share compilations.
SIZES = Options(num_slots=512, num_blocks=4096, list_blocks=128, num_shared_blocks=512)
# options of the recorded command lines about requests and figures, which a scenario brings or nobody compares
_BESIDE = (
    "workload-spec",
    "workload",
    "rate",
    "num-requests",
    "seed",
    "detectors",
)
_BESIDE += ("prompt-tokens", "output-tokens", "output-tokens-stdev", "prefix-tokens")
_BESIDE += ("concurrency", "think-time-ms", "slo-ttft", "slo-e2e", "slo-itl")
_SWITCHES = ("enable-expert-parallel",)  # without effect on any step, as the semantics say
_TENANTS = {"tenants": "0=0.02,2=0.05"}  # policy files whose tenants are numbered by name here
# arrays of a record: those of the recording
ARRAYS = {
    "instance": "instance",
    "queued_at_us": "queued_at_us",
    "sched_delay_us": "sched_delay_us",
    "ttft_us": "ttft_us",
    "e2e_us": "e2e_us",
    "left_us": "completed_at_us",
    "preemptions": "preemptions",
    "num_scheduled": "num_scheduled",
    "cached_tokens_first_sched": "cached_tokens_first_sched",
}
OF_WHOLE = ("instance", "sched_delay_us", "ttft_us", "e2e_us")  # of split requests, too
# counters of KV blocks of an instance: those of the recording; the lower ones with a CPU tier alone
KV_COUNTERS = {
    "gpu_hits": "gpu_hits",
    "gpu_misses": "gpu_misses",
    "cpu_offloads": "mirrored",
    "cpu_reloads": "cpu_hits",
    "cpu_misses": "cpu_misses",
    "cpu_thrashing": "cpu_evictions",
}
AT_END = ("scheduled_step_idx", "finished_step_idx", "num_itl", "progress_index")
STATUS = {
    0: Status.COMPLETED,
    1: Status.REJECTED,
    2: Status.DROPPED,
    3: Status.WAITING,
    4: Status.RUNNING,
    5: Status.IN_FLIGHT,
    6: Status.TIMED_OUT,
    7: Status.QUEUE_FULL,
    8: Status.SHED,
    9: Status.EXPIRED,
    10: Status.EVICTED,
    11: Status.UNROUTED,
    12: Status.IN_GATEWAY,
    13: Status.DROPPED,  # at the decode instance
    14: Status.IN_FLIGHT,  # in transfer
}
# what a record's splits have, and what the recording has of split requests, -1 where it never happened
PARTS = {
    "prefill_instance": "pd_prefill_instance",
    "decode_instance": "pd_decode_instance",
    "prefill_left_us": "prefill_completed_at",
    "transfer_at_us": "pd_transfer_start_us",
}


@dataclasses.dataclass(frozen=True)
class AugustScenario:
    """A recorded run; a closed loop without a specification gets the arrivals of the recording."""

    folder: Path
    name: str

    @functools.cached_property
    def recorded(self) -> dict[str, Any]:
        """Configuration and aggregates."""
        text = (self.folder / "scenarios" / f"{self.name}.json").read_text()
        return dict(json.loads(text))

    def _options(self) -> dict[str, str]:
        words, found = self.recorded["cli_args"][1:], {}
        place = 0
        while place < len(words):
            name = words[place].removeprefix("--")
            has_value = place + 1 < len(words) and not words[place + 1].startswith("--")
            found[name] = words[place + 1] if has_value else ""
            place += 2 if has_value else 1
        return found

    @property
    def seed(self) -> int:
        """Of the ties: the flag's, not the specification's."""
        return int(self._options().get("seed", DEFAULT_SEED))

    @property
    def cluster(self) -> ClusterConfig:
        """What the recorded command line describes, read by the package's own options."""
        options = self._options()
        line = ["--profile", "blis-2026-08"]
        tenants = _TENANTS.get(self.recorded["policy_bundle"])
        if tenants:
            line += ["--tenant-budgets", tenants]
        path = options.pop("policy-config", None)
        if path and not tenants:
            line += ["--policy-config", str(self.folder / path)]
        for name, value in options.items():
            if name not in (*_BESIDE, *_SWITCHES):
                line += [f"--{name}", value] if value else [f"--{name}"]
        return cluster_config(make_parser().given(line))

    def arrays(self) -> dict[str, np.ndarray]:
        """What happened to every request and in every step."""
        with np.load(self.folder / "scenarios" / f"{self.name}.npz") as file:
            return dict(file)

    def table(self) -> RequestTable:
        """The recorded requests; arrivals of later rounds are those of the recorded run."""
        with np.load(self.folder / "workloads" / f"{self.recorded['workload']}.npz") as file:
            arrays = dict(file)
        # short prompts are told apart by a policy that the revision no longer has
        arrays["short_input_id"] = np.zeros(len(arrays["arrival_us"]), np.int64)
        table = from_golden(arrays, self.recorded["block_size"])
        if not self.recorded["status_counts"].get("timed_out"):
            return table  # deadlines that nobody misses change nothing
        deadline = arrays["deadline_us"]
        return with_timeouts(table, np.where(deadline > 0, deadline - arrays["arrival_us"], 0))

    def run(self, options: Options = SIZES) -> RunRecord:
        """The scenario as the engine runs it; sessions of a closed loop go on as their rounds complete."""
        return self.labelled_run(options)[0]

    def labelled_run(self, options: Options = SIZES) -> tuple[RunRecord, Labels]:
        """Likewise, with what its requests are called."""
        spec = self.recorded["workload_spec"]
        if not (self.recorded["closed_loop"] and spec):
            table = self.table()
            record = simulate(self.cluster, table, options, self.seed)
            with np.load(self.folder / "workloads" / f"{self.recorded['workload']}.npz") as file:
                tenants = tenants_in_order(file["tenant_names"])[1]
            return record, labels_of(record, table, WorkloadNames(tenants))
        path = self.folder / "specs" / f"{spec}.yaml"
        workload = drawn(load_spec(path, AUGUST), self.seed, None)
        run = simulate_closed_loop(self.cluster, workload, options, self.seed)
        return run.record, labels_of(run.record, run.table, run.loop.names)

    @property
    def grouping(self) -> tuple[Any, ...]:
        """Scenarios of one compilation lie together."""
        options = self._options()
        named = ("routing-policy", "routing-scorers", "scheduler", "num-instances")
        return (
            *(options.get(name, "") for name in named),
            options.get("latency-model", ""),
            self.recorded["policy_bundle"] or "",
            "preemption-policy" in options,
            self.recorded["num_requests"],
        )


def differences(record: RunRecord, scenario: AugustScenario) -> list[str]:
    """Arrays of requests and steps that are not as recorded, with the first difference; empty if all are equal."""
    recorded, requests = _numbered(scenario), record.requests
    status = recorded["status"]
    expected = np.array([int(STATUS.get(int(one), -1)) for one in status], np.int64)
    arrivals = np.asarray(scenario.table().arrival_us)
    pairs: list[tuple[str, Any, Any]] = [("arrival_us", requests.arrival_us, arrivals)]
    pairs.append(("status", requests.status, expected))
    is_kept, is_done = status != Status.DROPPED, status == Status.COMPLETED
    nobody = np.full(len(status), -1)
    is_split = recorded.get("pd_prefill_instance", nobody) >= 0
    for ours, theirs in ARRAYS.items():
        mask = is_kept & (~is_split | (ours in OF_WHOLE))
        pairs.append((ours, getattr(requests, ours)[mask], recorded[theirs][mask]))
    for name in AT_END:  # the recording has these of completed requests alone
        mask = is_done & ~is_split
        pairs.append((name, getattr(requests, name)[mask], recorded[name][mask]))
    if is_split.any():
        pairs += _parts(record, recorded, is_split)
    if requests.gateway_wait_us is not None:
        wait = recorded["gw_dispatch_us"] - recorded["gw_enqueue_us"]
        was_there = requests.gateway_wait_us >= 0
        pairs.append(("gateway_wait_us", requests.gateway_wait_us[was_there], wait[was_there]))
    steps = expand_steps(record, scenario.recorded["block_size"])
    pairs += [(name, getattr(steps, name), recorded[name]) for name in steps._fields]
    pairs += _kv(record, scenario.recorded["instances"])
    found = []
    for name, ours, theirs in pairs:
        if np.shape(ours) != np.shape(theirs):
            found.append(f"{name}: {len(ours)} entries, recorded {len(theirs)}")
        elif (wrong := np.flatnonzero(np.asarray(ours) != theirs)).size:
            at = int(wrong[0])
            found.append(f"{name}: {wrong.size} differ, first [{at}] {ours[at]} != {theirs[at]}")
    return found


def printed_sections(record: RunRecord, labels: Labels, scenario: AugustScenario) -> str:
    """What is printed behind the JSON blocks."""
    text = results_text(record, labels, scenario.cluster)
    return text[text.rindex("\n}\n") + 3 :].strip()


def _numbered(scenario: AugustScenario) -> dict[str, np.ndarray]:
    """The arrays, with instances that an autoscaler made numbered behind the first ones, not from 1000 on."""
    arrays, instances = scenario.arrays(), scenario.recorded["instances"]
    places = {one["index"]: place for place, one in enumerate(instances)}
    for name in ("instance", "step_instance"):
        numbers = [places.get(one, one) for one in arrays[name].tolist()]
        arrays[name] = np.asarray(numbers, arrays[name].dtype)
    return arrays


def _kv(record: RunRecord, instances: list[dict[str, Any]]) -> list[tuple[str, Any, Any]]:
    """What became of KV blocks where there is a CPU tier, and the rates of that, rounded to twelve digits."""
    if "mirrored" not in instances[0]["kv"]:
        return []
    pairs: list[tuple[str, Any, Any]] = [
        (ours, getattr(record.instances, ours), np.array([one["kv"][theirs] for one in instances]))
        for ours, theirs in KV_COUNTERS.items()
    ]
    for name, rates in (
        ("cache_hit_rate", cache_hit_rates(record)),
        ("thrashing", thrashing_rates(record)),
    ):
        recorded = np.array([one[name] for one in instances])
        pairs.append((name, np.round(rates, 12), np.round(recorded, 12)))
    return pairs


def _parts(
    record: RunRecord, recorded: dict[str, np.ndarray], is_split: np.ndarray
) -> list[tuple[str, Any, Any]]:
    """What happened to the parts of split requests, ours beside the recorded."""
    requests, splits = record.requests, record.splits
    assert splits is not None
    found = [("is_split", splits.is_split, is_split)]
    for ours, theirs in PARTS.items():
        found.append((ours, getattr(splits, ours)[is_split], recorded[theirs][is_split]))
    ran = is_split & (recorded["decode_first_sched"] >= 0)
    done = is_split & (recorded["status"] == Status.COMPLETED)
    arrival = requests.arrival_us
    scheduled = splits.prefill_sched_delay_us + arrival
    found.append(
        ("prefill_last_sched", scheduled[is_split], recorded["prefill_last_sched"][is_split])
    )
    moved = splits.transfer_at_us + requests.transfer_us
    found.append(("transfer_ends", moved[ran], recorded["pd_transfer_complete_us"][ran]))
    joined = moved + requests.handed_wait_us
    found.append(("decode_first_sched", joined[ran], recorded["decode_first_sched"][ran]))
    again = splits.decode_sched_delay_us + arrival
    found.append(("decode_last_sched", again[ran], recorded["decode_last_sched"][ran]))
    evictions = sum(np.maximum(recorded[f"{part}_preempt"], 0) for part in ("prefill", "decode"))
    found.append(("evictions", requests.preemptions[is_split], evictions[is_split]))
    cached = recorded["prefill_cached_first"]
    found.append(("cached", requests.cached_tokens_first_sched[is_split], cached[is_split]))
    found.append(("decode_left", requests.left_us[done], recorded["decode_completed_at"][done]))
    found.append(("decode_num_itl", requests.num_itl[done], recorded["decode_num_itl"][done]))
    return found


# --- the page -------------------------------------------------------------------------------------

PAGE = REPO_ROOT / "docs" / "results" / "blis-2026-08.md"


def verdict(scenario: AugustScenario) -> str:
    """What a row of the page says of a recorded run."""
    record, labels = scenario.labelled_run()
    found = differences(record, scenario)
    if printed_sections(record, labels, scenario) != scenario.recorded["stdout_tail"].strip():
        found.append("the printed sections")
    try:
        assert_totals_equal(cluster_json(record), scenario.recorded["cluster_json"])
    except AssertionError:
        found.append("the cluster's JSON")
    return "equal" if not found else "not equal: " + "; ".join(found)


def scenarios_of(folder: Path) -> list[AugustScenario]:
    """All recorded runs, those of one compilation together."""
    rows = json.loads((folder / "index.json").read_text())["scenarios"]
    return sorted(
        (AugustScenario(folder, row["name"]) for row in rows), key=lambda one: one.grouping
    )


def table_of(folder: Path) -> str:
    """The verdict on every recorded run, as Markdown."""
    found = {}
    for one in scenarios_of(folder):
        found[one.name] = verdict(one)
        print(one.name, found[one.name], file=sys.stderr, flush=True)
    equal = sum(text == "equal" for text in found.values())
    lines = [f"{equal} equal, {len(found) - equal} not equal.", ""]
    lines += ["| recorded run | requests | steps | verdict |", "|---|---|---|---|"]
    for row in json.loads((folder / "index.json").read_text())["scenarios"]:
        counts = f"{row['num_requests']} | {row['num_steps']}"
        lines.append(f"| `{row['name']}` | {counts} | {found[row['name']]} |")
    return "\n".join(lines)


if __name__ == "__main__":
    golden = find_golden_dir()
    if golden is None or not (golden / "blis_2026_08" / "index.json").exists():
        sys.exit("no recorded runs: ../shared/golden/blis_2026_08 is not here")
    page = PAGE if sys.argv[1:] == ["--write"] else None
    sys.exit(hand_over(table_of(golden / "blis_2026_08"), page, "blis-2026-08"))

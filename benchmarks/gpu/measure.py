"""What the form for GPUs takes on the machine at hand: golden runs first, then runs in ever more lanes.

python -m benchmarks.gpu.measure --minutes 8             goes on where it was stopped; the table on stdout
python -m benchmarks.gpu.measure --minutes 0 --write     what is measured, into docs/results/gpu.md

Needs only what such a machine has: jax, numpy, PyYAML and xarray. Each piece is a line of a JSON file as soon as it is
there. A golden run that is not equal ends the command; what fails otherwise, such as for want of memory, is a line too.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import yaml

from benchmarks.golden import committed
from benchmarks.gpu.__main__ import PAGE, PROJECTED_LANES, SLOTS
from benchmarks.speed.worker import BASELINE
from blis_jax.cluster.config import ClusterConfig, from_flags
from blis_jax.core.outcome import WHOLE, Outcome
from blis_jax.metrics.compiled import RunFigures
from blis_jax.metrics.measure import Measure
from blis_jax.metrics.summaries import SloTargets
from blis_jax.records.step_records import expand_steps
from blis_jax.reports.render import table_lines
from blis_jax.runs.calls import Call, Group
from blis_jax.runs.many_runs import drawn_runs, simulate
from blis_jax.runs.options import Options
from blis_jax.runs.programs import drawn_row, reports_of, rows_of
from blis_jax.runs.runs import Point
from blis_jax.workload.source import FIRST_REVISION
from blis_jax.workload.table import from_golden
from papers.pages import ROOT, hand_over, refuse, table_parser

GOLDEN = (
    "scheduling/it00_baseline_s42", "scheduling/cov_horizon_lat_s42", "scheduling/cov_ties_equal_rr1_s42",
    "scheduling/cov_kv1500_tiered_s7",
)  # fmt: skip
FIGURES = ("ttft_p99_ms", "e2e_mean_ms", "ttft_p99_ms[critical]")
PARTS = ("whole", "draw", "simulate", "figures")
REPEATS = 3
# what a workload's file may leave out
UNSAID = {
    "revision": FIRST_REVISION, "horizon": 0, "active_windows": (), "cv": None, "multi_turn": None, "multimodal": None,
    "servegen_data": None, "inference_perf": None,
}  # fmt: skip


def workload(file: Path = ROOT / "blis_jax" / "data" / "workloads" / "mixed.yaml") -> Any:
    """Return a workload as its file has it; the package that checks workloads is not installed here."""
    text = json.dumps(yaml.safe_load(file.read_text(encoding="utf-8")))
    return json.loads(text, object_hook=lambda keys: SimpleNamespace(**UNSAID | keys))


def unequal(name: str) -> list[str]:
    """Return the arrays in which a golden run in form `lanes` differs from its record."""
    track, _, run = name.partition("/")
    path = committed() / track / "scenarios" / f"{run}.json"
    recorded = json.loads(path.read_text(encoding="utf-8"))
    cluster = from_flags(recorded["config"])
    with np.load(path.parents[1] / "workloads" / f"{recorded['workload']}.npz") as file:
        table = from_golden(dict(file), cluster.block_size_in_tokens)
    record = simulate(cluster, table, Options(form="lanes"))
    steps = expand_steps(record, cluster.block_size_in_tokens)
    with np.load(path.with_suffix(".npz")) as file:
        return [
            array
            for array, theirs in file.items()
            if not np.array_equal(
                getattr(steps if array.startswith("step_") else record.requests, array), theirs
            )
        ]


class Parts:
    """One call of the baseline with a seed for each lane: the program that users run, and its parts by themselves."""

    def __init__(self, lanes: int) -> None:
        """Prepare one run for each of the first `lanes` seeds."""
        points = [Point(ClusterConfig(**BASELINE), workload())]
        options = Options(form="lanes", resolve_ties=False, num_slots=SLOTS)
        runs = drawn_runs(points, range(lanes), options)
        self.summary = RunFigures(FIGURES, SloTargets(), Measure({}))
        self.call = Call(Group(runs[0]), runs, lanes, self.summary)
        self.left: dict[str, Any] = {}  # on the device, by the part that has made it

    def made_by(self, part: str) -> Any:
        """Return the arrays that a part of the program leaves on the device."""
        if part not in self.left:
            function, arguments = self.program(part)
            self.left[part] = jax.jit(function)(*arguments)
        return self.left[part]

    def program(self, part: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Return the function of a part and its arguments."""
        call, arguments = self.call, self.call.arguments(self.call.given())
        params, source, steps, numbers = arguments
        group, plan = call.group, call.group.plan
        assert plan is not None
        if part == "whole":
            return rows_of(*call.statics), arguments
        if part == "draw":
            return jax.vmap(partial(drawn_row, plan)), source
        tables = self.made_by("draw")[0]
        if part == "simulate":
            return rows_of(group.shape, group.functions, "lanes"), (params, tables, steps)
        function = reports_of(group.shape, group.functions, self.summary.compute)
        return function, (self.made_by("simulate").raw, tables[0], params, numbers)

    def measured(self, part: str) -> dict[str, Any]:
        """Compile a part and time it; the whole program is also timed with the host's work from seeds to figures."""
        function, arguments = self.program(part)
        began = time.perf_counter()
        program = jax.jit(function).lower(*arguments).compile()
        line: dict[str, Any] = {"compile_s": time.perf_counter() - began}
        memory = program.memory_analysis()
        line["bytes"] = memory.temp_size_in_bytes + memory.output_size_in_bytes
        line["bytes"] += memory.argument_size_in_bytes - memory.alias_size_in_bytes
        line["device_s"] = best_s(lambda: jax.block_until_ready(program(*arguments)))
        if part != "whole":
            return line
        ran = program(*arguments)
        outcomes = [Outcome(code) for code in jax.device_get(ran.report.outcome).tolist()]
        line["not_whole"] = sum(outcome not in WHOLE for outcome in outcomes)
        line["scan_steps"] = int(ran.lane_steps) // len(outcomes)

        def end_to_end() -> object:
            report = program(*self.call.arguments(self.call.given())).report
            return self.summary.of_reports(jax.device_get(report), 0)

        return line | {"end_to_end_s": best_s(end_to_end)}


def best_s(function: Callable[[], object]) -> float:
    """Return the seconds of the fastest repetition; each result is freed before the next repetition."""
    function()
    seconds = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


class Log:
    """A file with a line of JSON for each measurement, written at once; lines of other machines do not count."""

    def __init__(self, path: Path) -> None:
        """Read the lines that an earlier call has left."""
        self.path, self.machine = path, f"{jax.devices()[0].device_kind}, jax {jax.__version__}"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self.lines: list[dict[str, Any]] = [json.loads(line) for line in lines]

    def find(self, **key: Any) -> dict[str, Any]:
        """Return this machine's measurement with these values; empty if there is none."""
        key["machine"] = self.machine
        return next((line for line in self.lines if key.items() <= line.items()), {})

    def add(self, make: Callable[[], dict[str, Any]], **key: Any) -> None:
        """Make a measurement and write its line; a failure of the device, such as lack of memory, too."""
        began = time.perf_counter()
        try:
            made = make()
        except jax.errors.JaxRuntimeError as error:
            made = {"failed": str(error).splitlines()[0][:200]}
        self.lines.append(key | {"machine": self.machine} | made)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(self.lines[-1]) + "\n")
        piece = " ".join(str(value) for value in key.values())
        print(f"{piece}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)


def fill(log: Log, golden: Sequence[str], all_lanes: Sequence[int], until: float) -> str:
    """Measure what the log lacks until a time of `time.monotonic`; return an error as text, empty if there is none."""
    for name in golden:
        if time.monotonic() < until and not log.find(golden=name):
            log.add(lambda name=name: {"unequal": unequal(name)}, golden=name)  # type: ignore[misc]
        if differing := log.find(golden=name).get("unequal"):
            return f"{name} is not equal to its record in {', '.join(differing)}; nothing is timed"
    for lanes in all_lanes:
        parts = None  # frees what the last one has left on the device
        for part in PARTS:
            if time.monotonic() < until and not log.find(lanes=lanes, part=part):
                parts = parts or Parts(lanes)
                log.add(partial(parts.measured, part), lanes=lanes, part=part)
    return ""


def projected(page: str) -> dict[int, str]:
    """Return the projected runs/s of the baseline by lanes, as the page has them."""
    _, _, rest = page.partition("| projected runs/s |")
    row = next((line for line in rest.splitlines() if line.startswith("| baseline |")), "")
    return dict(zip(PROJECTED_LANES, (cell.strip() for cell in row.split("|")[2:]), strict=False))


def table(log: Log, golden: Sequence[str], all_lanes: Sequence[int], page: str) -> str:
    """Write what is measured as Markdown, beside the projection."""
    equal = [name for name in golden if log.find(golden=name).get("unequal") == []]
    lines = [
        f"Measured with `python -m benchmarks.gpu.measure` on {log.machine}: the baseline on the mixed workload's "
        f"1,000 requests, a seed a lane. Of {len(golden)} golden runs {len(equal)} were made and equal in every array.",
        "",
    ]
    head = (
        "lanes", "runs/s end to end", "projected", "runs/s on the device", "scan steps of a lane", "draw s",
        "simulate s", "figures s", "GB", "compile s", "compile s of the parts",
    )  # fmt: skip
    projection, rows = projected(page), []
    for lanes in all_lanes:
        whole, *parts = (log.find(lanes=lanes, part=part) for part in PARTS)
        if "failed" in whole:
            rows.append([f"{lanes:,}", whole["failed"], *[""] * 9])
        if "device_s" not in whole:
            continue
        cells = [
            f"{lanes:,}",
            f"{lanes / whole['end_to_end_s']:,.0f}",
            projection.get(lanes, "–"),
            f"{lanes / whole['device_s']:,.0f}",
            f"{whole['scan_steps']:,}",
            *(f"{part['device_s']:.3f}" if "device_s" in part else "–" for part in parts),
            f"{whole['bytes'] / 1e9:.2f}",
            f"{whole['compile_s']:.1f}",
            ", ".join(f"{part['compile_s']:.1f}" for part in parts if "compile_s" in part) or "–",
        ]
        rows.append(cells)
        if whole["not_whole"]:
            left = f"{whole['not_whole']:,} runs of these did not come to their end"
            rows.append(["", left, *[""] * 9])
    return "\n".join([*lines, *table_lines(head, rows)])


def main(words: Sequence[str] | None = None) -> int:
    """Measure what is not there yet and print the table."""
    parser = table_parser("benchmarks.gpu.measure", __doc__, f"docs/results/{PAGE.name}")
    parser.add_argument("--minutes", type=float, default=8.0, help="after which no piece begins")
    parser.add_argument("--output", type=Path, default=ROOT / "out" / "gpu.jsonl")
    parser.add_argument("--lanes", type=int, action="append", help="may be repeated")
    parser.add_argument("--golden", choices=GOLDEN, action="append", help="may be repeated")
    arguments = parser.parse_args(words)
    golden, all_lanes = arguments.golden or GOLDEN, arguments.lanes or PROJECTED_LANES
    if min(all_lanes) < 1:
        return refuse(f"--lanes: got {min(all_lanes)}, allowed is 1 or more")
    log, until = Log(arguments.output), time.monotonic() + 60 * arguments.minutes
    with jax.enable_x64(True):
        wrong = fill(log, golden, all_lanes, until)
    if wrong:
        print(wrong, file=sys.stderr)
        return 1
    text = table(log, golden, all_lanes, PAGE.read_text(encoding="utf-8"))
    return hand_over(text, PAGE if arguments.write else None, "measured")


if __name__ == "__main__":
    sys.exit(main())

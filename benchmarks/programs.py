"""What a program of a search costs: CPU seconds of new Go programs, one by one, dropped early, compiled, at full size.

python -m benchmarks.programs --data FOLDER           table in Markdown on stdout
python -m benchmarks.programs --data FOLDER --write   the same, and into docs/how-to/evolve.md between its markers

FOLDER has the three workloads of set C (workload_v2_*.yaml); without it three workloads of the package stand in. CPU
seconds count, over all threads, so that the table holds beside other work; where both cores are free a program takes
between a half and all of them. What the first program compiles, and the baseline's runs, are told apart.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from benchmarks.__main__ import cpu_name
from blis_jax.backend import prepare_backend
from blis_jax.reports.render import row_line, table_lines
from papers.pages import ROOT, hand_over, table_parser
from sweeps.evolve.breeding import searched
from sweeps.evolve.score import TaskEvaluator
from sweeps.evolve.task import load_task

PAGE = ROOT / "docs" / "how-to" / "evolve.md"
NAMES = ("cache_warmup", "load_spikes", "multiturn")
FULL = (5000, 5000, 1500)  # requests of set C's files
NUM_SEEDS, NUM_REQUESTS = 8, 1500
NUM_PROGRAMS, NUM_COMPILED, NUM_BRED = 10, 3, 60
GO = """	// EVOLVE-BLOCK-START
	prefix := ws.scorers[0](req, snapshots)
	least := snapshots[0].EffectiveLoad()
	bestPrefix, holder := 0.0, 0
	for i, snap := range snapshots {{
		least = min(least, snap.EffectiveLoad())
		if prefix[snap.ID] > bestPrefix {{
			bestPrefix, holder = prefix[snap.ID], i
		}}
	}}
	weight := {a}
	if behind := snapshots[holder].EffectiveLoad() - least; bestPrefix > 0.1 && behind > 0 {{
		weight = weight / (1 + {b}*float64(behind))
	}}
	scores := make(map[string]float64, len(snapshots))
	for _, snap := range snapshots {{
		s := weight*prefix[snap.ID] + (1-weight)/(1+float64(snap.EffectiveLoad()))
		if snap.KVUtilization > {c} {{
			s -= 0.5 * (snap.KVUtilization - {c}) / 0.1
		}}
		scores[snap.ID] = s
	}}
	bestIdx, bestScore := 0, -1.0
	for i, snap := range snapshots {{
		if scores[snap.ID] > bestScore {{
			bestScore, bestIdx = scores[snap.ID], i
		}}
	}}
	// EVOLVE-BLOCK-END
"""


@dataclass(frozen=True)
class Cost:
    """A row of the table: CPU seconds of programs, and the seconds that they should not exceed."""

    what: str
    seconds: tuple[float, ...]
    target_s: float | None
    note: str

    @property
    def row(self) -> tuple[object, ...]:
        """Return the cells of the row."""
        mean = sum(self.seconds) / len(self.seconds)
        spread = f"{min(self.seconds):.2f} to {max(self.seconds):.2f}"
        aim = "" if self.target_s is None else f"{self.target_s:g}"
        each = f"{60 / mean:,.0f} to {120 / mean:,.0f}"
        return self.what, len(self.seconds), f"{mean:.2f}", spread, aim, each, self.note


def task_file(folder: Path, data: Path | None, num_requests: int | None, **more: object) -> Path:
    """Write a task of set C's shape; return its path."""
    built_in = ["mixed", "multiprefix", "chatbot"]
    files = [str(data / f"workload_v2_{name}.yaml") for name in NAMES] if data else built_in
    document = {
        "name": "set C", "workloads": files, "seeds": list(range(100, 100 + NUM_SEEDS)),
        "cluster": {"model": "meta-llama/llama-3.1-8b-instruct", "num-instances": 4,
                    "routing-scorers": "prefix-affinity:1,load-balance:1"},
        "score": {"e2e_mean_ms": 0.5, "e2e_p95_ms": 0.5}, **more,
    }  # fmt: skip
    if num_requests is not None:
        document["num_requests"] = num_requests
    path = folder / "task.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def programs() -> Iterator[str]:
    """Yield blocks of Go that compute different functions."""
    for a, b, c in itertools.product((0.5, 0.6, 0.45), (0.6, 0.3, 1.1, 0.9), (0.9, 0.85)):
        yield GO.format(a=a, b=b, c=c)


def clocked(call: Callable[[], object]) -> float:
    """Return the CPU seconds of a call."""
    began = time.process_time()
    call()
    return time.process_time() - began


def evaluated(evaluator: TaskEvaluator, text: str) -> float:
    """Return the CPU seconds of a program.

    Raises:
        SystemExit: the program fails.
    """
    answers: list[dict[str, dict[str, str]]] = []
    seconds = clocked(lambda: answers.append(evaluator.answer(text, ".go", "all")))
    if "error" in answers[0]["artifacts"]:
        raise SystemExit(answers[0]["artifacts"]["error"])
    return seconds


def costs(data: Path | None, is_full: bool) -> Iterator[Cost]:
    """Yield the rows, each as soon as it is measured."""
    with tempfile.TemporaryDirectory() as name:
        folder, texts = Path(name), list(programs())
        shape = f"{len(NAMES)} × {NUM_SEEDS} runs"
        path = task_file(folder, data, NUM_REQUESTS)
        made: list[TaskEvaluator] = []
        begun = clocked(lambda: made.append(TaskEvaluator(path, folder / "programs")))
        first = evaluated(made[0], texts[0])
        times = tuple(evaluated(made[0], text) for text in texts[1 : 1 + NUM_PROGRAMS])
        before = f"before it: {begun:.0f} s for requests, baseline and compiling, {first:.1f} s for the first program"
        yield Cost(f"new, {shape} of {NUM_REQUESTS:,} requests", times, 6, before)
        again = texts[1].replace("bestPrefix", "most").replace("holder", "owner")
        yield Cost(
            "the same function with other names",
            (evaluated(made[0], again),),
            None,
            "read, and not run",
        )
        seen: list[float] = [time.process_time()]
        searched(load_task(path), NUM_BRED, 3600.0, 0, lambda *_: seen.append(time.process_time()))
        bred = tuple(
            later - earlier for earlier, later in itertools.pairwise(seen[NUM_BRED // 3 :])
        )
        yield Cost(
            "bred, most dropped after three seeds or more", bred, 1.2, "formulas of `evolve search`"
        )
        other = folder / "compiled"
        other.mkdir()
        compiling = TaskEvaluator(
            task_file(other, data, NUM_REQUESTS, compile_programs=True), other / "programs"
        )
        evaluated(compiling, texts[0])
        times = tuple(evaluated(compiling, text) for text in texts[1 : 1 + NUM_COMPILED])
        yield Cost(
            f"compiled, {shape} of {NUM_REQUESTS:,} requests", times, 8, "`compile_programs: true`"
        )
        if is_full:
            full = folder / "full"
            full.mkdir()
            whole = TaskEvaluator(task_file(full, data, None), full / "programs")
            evaluated(whole, texts[0])
            times = tuple(evaluated(whole, text) for text in texts[1 : 1 + NUM_COMPILED])
            sizes = ", ".join(f"{size:,}" for size in FULL)
            yield Cost(f"new, {shape} of {sizes} requests", times, 20, "the workloads' own numbers")


def main(words: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = table_parser("benchmarks.programs", __doc__, "docs/how-to/evolve.md")
    parser.add_argument("--data", type=Path, help="folder of set C's workloads")
    options = parser.parse_args(words)
    prepare_backend()
    head = (
        "a program", "programs", "CPU s, mean", "CPU s, least to most", "aim", "a minute, two cores", "beside it",
    )  # fmt: skip
    rows = []
    for cost in costs(options.data, options.data is not None):
        rows.append(cost.row)
        print(row_line(cost.row), file=sys.stderr, flush=True)
    lines = table_lines(head, rows)
    files = "set C" if options.data else "three workloads of the package"
    lines += [
        "",
        f"Measured on two cores of {cpu_name()}, beside other work, on {files}: CPU seconds over all threads.",
    ]
    return hand_over("\n".join(lines), PAGE if options.write else None, "programs")


if __name__ == "__main__":
    sys.exit(main())

"""One table of speed and memory, compile apart from run, each case in a process of its own.

python -m benchmarks                 all cases, table in Markdown on stdout
python -m benchmarks --write         the same, and into docs/results/speed.md between its markers
python -m benchmarks --case NAME     one case
python -m benchmarks --against REV   this tree beside another revision, repetition by repetition
python -m benchmarks --against REV --programs   whether both compile the same programs
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.speed import against, worker
from benchmarks.speed.trace_cases import data_folder
from blis_jax.files.atomic_write import write_json
from blis_jax.reports.render import table_lines
from papers.pages import ROOT, hand_over, refuse, table_parser

T = TypeVar("T")

PAGE = ROOT / "docs" / "results" / "speed.md"
CASES = (
    "single-baseline",
    "single-it08_opt",
    "seeds-256-one-core",
    "seeds-256-all-cores",
    "seeds-256-figures",
    "seeds-256-it08_opt",
    "sweep-256",
    "sustainable-1000",
    "sustainable-10000",
    "sustainable-100000",
    "sustainable-1000000",
    "instances-8-least-loaded",
    "instances-8-round-robin",
    "instances-100",
    "instances-1000",
    "instances-1000-least-loaded",
    "instances-1000-round-robin",
    "overloaded-1000",
    "overloaded-10000",
    "pressure-5000",
    "pressure-5000-cpu",
    "pressure-2000",
    "index-of-routings",
    "index-of-caches",
    "pools",
    "outages",
    "flow-control",
    *(f"{name}-{count}" for name in worker.CLUSTERS for count in worker.LONG_COUNTS),
    "bursts-2000",
    "august-default",
    "august-weighted",
    "august-long-prompts",
    "multi-turn",
    "multi-turn-pressure",
    "reference-requests",
    "search-40-calls",
    "search-joint",
    "mooncake-8",
    "mooncake-8-least-loaded",
    "mooncake-8-round-robin",
    "mooncake-8-round-robin-512",
    "mooncake-64",
    "azure-conv",
    "azure-conv-two",
    "azure-code",
    "start-run",
    "start-august",
    "start-sweep",
    "compile-cold",
    "compile-cached",
    "form-thunks",
    "form-thunks-one-thread",
    "form-lanes",
)


def cpu_name() -> str:
    """Return the processor's name as the system gives it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def run_case(name: str, window: int | None = None) -> dict[str, object]:
    """Run one case in a fresh process with an empty cache of programs, and return what it printed."""
    with tempfile.TemporaryDirectory() as folder:
        return _run_case(name, window, dict(os.environ) | {"JAX_COMPILATION_CACHE_DIR": folder})


def _run_case(name: str, window: int | None, env: dict[str, str]) -> dict[str, object]:
    env.pop("XLA_FLAGS", None)  # importing blis_jax has set it here, and sets it there
    if name.startswith("form-thunks"):
        env["XLA_FLAGS"] = ""
    if name == "form-thunks-one-thread":
        env["NPROC"] = "1"
    command = [sys.executable, "-m", "benchmarks.speed.case", name]
    if window is not None:
        command.append(str(window))
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"benchmark {name} failed: {done.stderr.strip().splitlines()[-1]}")
    result: dict[str, object] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def table(results: dict[str, dict[str, object]]) -> str:
    """Write the results as a Markdown table, with the machine named."""
    lines = [
        f"Measured with `python -m benchmarks` on {cpu_name()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}; best of several repetitions, warm unless said.",
        "",
    ]
    head = ("case", "compile s", "run", "per request or run", "peak memory MB")
    rows = (
        (of["title"], f"{of['compile_s']:.1f}", of["run"], of["unit"], f"{of['peak_mb']:.0f}")
        for of in results.values()
    )
    return "\n".join([*lines, *table_lines(head, rows)])


Look = Callable[[str, tuple[Path, Path], Path, Mapping[str, str]], T]
"""What is asked of a case, two trees, the folder of traces, and environment variables."""


def _on_both(commit: str, names: Sequence[str], look: Look[T]) -> tuple[list[T], bool]:
    """Measure every case at the commit and here; return the results, and whether all cases ran. Errors go to stderr."""
    flags = {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    results = []
    with against.ended_by_signals(), against.checked_out(commit) as tree:
        for name in names:
            try:
                results.append(look(name, (tree, against.REPO), data_folder(), flags))
            except against.AgainstError as error:
                print(error, file=sys.stderr)
    return results, len(results) == len(names)


def side_by_side(
    revision: str, names: Sequence[str], counts: tuple[int, int, int], output: Path | None
) -> int:
    """Time every case here and at the revision; return exit code 1 if some case did not run on both sides."""
    commit = against.commit_of(revision)

    def measured(name: str, *where: Any) -> against.Comparison:
        comparison = against.compare_case_again(name, *where, counts)
        print(f"{name}: {comparison.run.ratio[0]:.3f}", file=sys.stderr)
        return comparison

    results, is_whole = _on_both(commit, names, measured)
    words = [f"--against {revision}", *(f"--case {name}" for name in names)]
    words = words[:1] if list(names) == list(worker.CASES) else words
    print(
        f"Measured with `python -m benchmarks {' '.join(words)}` on {cpu_name()}, "
        f"{os.cpu_count()} cores, {counts[0]} pairs of fresh processes, {counts[1]} repetitions in turns; medians, and "
        "the ratio with its 95 % interval over the pairs; above 1 is faster here.\n"
    )
    print(against.table(revision, results))
    if output is not None:
        write_json(output, against.document(revision, commit, results))
    return 0 if is_whole else 1


def programs_side_by_side(revision: str, names: Sequence[str]) -> int:
    """Compare the programs of every case here and at the revision; return exit code 1 if some case did
    not run on both.
    """
    commit = against.commit_of(revision)
    results, is_whole = _on_both(commit, names, against.compare_programs)
    print(against.program_table(revision, results))
    return 0 if is_whole else 1


def _parser() -> argparse.ArgumentParser:
    parser = table_parser("benchmarks", __doc__, "docs/results/speed.md")
    parser.add_argument("--case", choices=CASES, action="append", help="may be given several times")
    parser.add_argument("--window", type=int, help="blocks moved in a scan step, at block level")
    parser.add_argument("--against", metavar="REV", help="commit, branch or tag to compare with")
    parser.add_argument(
        "--programs", action="store_true", help="with --against: compare programs, not times"
    )
    parser.add_argument("--processes", type=int, default=4, help="pairs of fresh processes (4)")
    parser.add_argument("--repetitions", type=int, default=3, help="runs in each (3)")
    parser.add_argument("--compilations", type=int, default=1, help="compilations in each (1)")
    parser.add_argument("--output", type=Path, metavar="FILE.json", help="every repetition")
    return parser


def _refusal(arguments: argparse.Namespace) -> str:
    """Return why the options contradict each other; an empty text if they do not."""
    if arguments.programs and (arguments.against is None or arguments.output):
        return "--programs goes with --against REV and without --output"
    if arguments.against is None:
        return "--output belongs to --against REV; give both" if arguments.output else ""
    if arguments.write or arguments.window is not None:
        return "--write and --window do not go with --against; leave them out"
    if arguments.processes < 2:
        return f"--processes: got {arguments.processes}, allowed is 2 or more: the interval is over them"
    for name in ("repetitions", "compilations"):
        if getattr(arguments, name) < 1:
            return f"--{name}: got {getattr(arguments, name)}, allowed is 1 or more"
    if arguments.output is not None and arguments.output.suffix != ".json":
        return f"--output: {str(arguments.output)!r} must end in .json"
    unknown = [name for name in arguments.case or () if name not in worker.CASES]
    if unknown:
        return f"--case {unknown[0]} has no comparison; with --against choose {', '.join(worker.CASES)}"
    return ""


def main(words: Sequence[str] | None = None) -> int:
    """Run the cases and print the table."""
    arguments = _parser().parse_args(words)
    refusal = _refusal(arguments)
    if not refusal and arguments.against is not None:
        counts = arguments.processes, arguments.repetitions, arguments.compilations
        names = arguments.case or list(worker.CASES)
        try:
            if arguments.programs:
                return programs_side_by_side(arguments.against, names)
            return side_by_side(arguments.against, names, counts, arguments.output)
        except against.AgainstError as error:
            refusal = str(error)
        except KeyboardInterrupt:
            return 130
    if refusal:
        return refuse(refusal)
    results = {}
    for name in arguments.case or CASES:
        results[name] = run_case(name, arguments.window)
        print(f"{name}: {results[name]['run']}", file=sys.stderr)
    return hand_over(table(results), PAGE if arguments.write else None, "benchmarks")


if __name__ == "__main__":
    sys.exit(main())

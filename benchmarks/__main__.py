"""One table of speed and memory, compile apart from run, each case in a process of its own.

python -m benchmarks                 all cases, table in Markdown on stdout
python -m benchmarks --write         the same, and into README.md between its markers
python -m benchmarks --case NAME     one case, as JSON
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

ONE_FUNCTION = "--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=1000000000000"
CASES = (
    "single-baseline",
    "single-it08_opt",
    "seeds-256-one-core",
    "seeds-256-all-cores",
    "seeds-256-it08_opt",
    "sustainable-1000",
    "sustainable-10000",
    "sustainable-100000",
    "overloaded-1000",
    "overloaded-10000",
    "pressure-5000",
    "pressure-5000-cpu",
    "pressure-2000",
    "multi-turn",
    "multi-turn-pressure",
    "reference-requests",
    "search-40-calls",
    "search-joint",
    "mooncake-8",
    "mooncake-8-least-loaded",
    "mooncake-64",
    "azure-conv",
    "azure-conv-two",
    "azure-code",
    "compile-cold",
    "compile-cached",
    "form-thunks",
    "form-thunks-one-thread",
    "form-lanes",
)


def cpu_name() -> str:
    """The processor's name as the system gives it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def run_case(name: str, window: int | None = None) -> dict[str, object]:
    """Run one case in a fresh process and return what it printed."""
    env = dict(os.environ)
    env["XLA_FLAGS"] = "" if name.startswith("form-thunks") else ONE_FUNCTION
    if name == "form-thunks-one-thread":
        env["NPROC"] = "1"
    command = [sys.executable, "-m", "benchmarks.case", name]
    if window is not None:
        command.append(str(window))
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"benchmark {name} failed: {done.stderr.strip().splitlines()[-1]}")
    result: dict[str, object] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def table(results: dict[str, dict[str, object]]) -> str:
    """The results as a Markdown table with the machine named."""
    lines = [
        f"Measured with `python -m benchmarks` on {cpu_name()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}; best of several repetitions, warm unless said.",
        "",
        "| case | compile s | run | per request or run | peak memory MB |",
        "|---|---|---|---|---|",
    ]
    for name, result in results.items():
        lines.append(
            f"| {result['title']} | {result['compile_s']:.1f} | {result['run']} | "
            f"{result['unit']} | {result['peak_mb']:.0f} |"
        )
        del name
    return "\n".join(lines)


def write_readme(text: str) -> None:
    """Put the table between the README's markers."""
    readme = Path(__file__).parent.parent / "README.md"
    begin, end = "<!-- benchmarks:begin -->", "<!-- benchmarks:end -->"
    before, _, rest = readme.read_text().partition(begin)
    _, _, after = rest.partition(end)
    readme.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def main() -> None:
    """Run the cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=CASES, action="append")
    parser.add_argument("--window", type=int, help="blocks moved in a scan step, at block level")
    parser.add_argument("--write", action="store_true", help="also write the table into README.md")
    arguments = parser.parse_args()
    results = {}
    for name in arguments.case or CASES:
        results[name] = run_case(name, arguments.window)
        print(f"{name}: {results[name]['run']}", file=sys.stderr)
    text = table(results)
    print(text)
    if arguments.write:
        write_readme(text)


if __name__ == "__main__":
    main()

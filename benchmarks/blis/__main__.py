"""Random command lines of BLIS of August 2026, by BLIS and by blis-jax: is all that is printed and written equal?

python -m benchmarks.blis --repository FOLDER [--program FILE] [--runs N] [--first K]

FOLDER is a checkout of BLIS (it has defaults.yaml), the program its compiled `blis`, in that folder if none is given.
Line K is the same on every machine. A line that both refuse counts as refused. One that only one of them refuses, or
whose texts differ, is printed with the first differences, and the exit code is 1. The seconds of both stand beside it:
BLIS's are wall time of the whole command, ours CPU time within a process that has been started, compiling included.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.blis.lines import OUT, Line, line
from blis_jax.backend import prepare_backend
from blis_jax.commands.door.dispatch import main as main_of_blis_jax

METRICS, OURS = "m.json", ("kv", "provenance")  # the file of metrics, and what ours says besides
OF_CLIENT = ("client_ttft_ms", "client_e2e_ms")  # where a client has a network
OF_SPLIT = ("first_chunk_time_us", "last_chunk_time_us", "status")
LIMIT_S = 25  # for BLIS; some of its runs never end


def ours(line: Line, out: Path) -> tuple[bool, str, str]:
    """Return whether blis-jax did what the line says, what it printed, and what it said beside."""
    words = [word.replace(OUT, f"{out}/") for word in line.words]
    profile = ["--profile", "blis-2026-08"] if line.command == ("run",) else []
    printed, said = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said):
        code: object
        try:
            code = main_of_blis_jax([*line.command, *profile, *words])
        except SystemExit as stopped:
            code = stopped.code
    return not code, printed.getvalue(), said.getvalue()


def verdict(theirs: subprocess.CompletedProcess[str], made: bool, printed: str, said: str) -> str:
    """Return what a line came to, with the first lines that differ."""
    if theirs.returncode or not made:
        if theirs.returncode and not made:
            return "refused"
        who, text = ("BLIS", theirs.stderr) if theirs.returncode else ("blis-jax", said)
        return f"refused by {who} alone: {text.strip().splitlines()[-1]}"
    different = differences(theirs.stdout, printed)
    return f"different:{different}" if different else "equal"


def differences(theirs: str, printed: str) -> str:
    """Return the first lines that differ; nothing if none does."""
    pairs = itertools.zip_longest(theirs.splitlines(), printed.splitlines(), fillvalue="")
    different = [f"\n  BLIS {a.strip()} | blis-jax {b.strip()}" for a, b in pairs if a != b]
    return "".join(different[:4])


def of_files(theirs: Path, out: Path, has_pools: bool) -> str:
    """Return how the files in two folders differ; nothing if they do not.

    BLIS knows no times of requests that pools have split (docs/how-to/trace-formats.md); ours are not compared.
    """
    texts = [
        {path.name: path.read_text() for path in sorted(folder.iterdir())}
        for folder in (theirs, out)
    ]
    if texts[0].keys() != texts[1].keys():
        return f"\n  BLIS wrote {sorted(texts[0])} | blis-jax {sorted(texts[1])}"
    for name, text in texts[0].items():
        other = texts[1][name]
        if name == METRICS:
            text, other = (json.dumps(_shared(json.loads(t)), indent=0) for t in (text, other))
        if has_pools and name.endswith(".csv"):
            text, other = _without_split(text, other)
        if different := differences(text, other):
            return f"\n  {name}:{different}"
    return ""


def _without_split(theirs: str, printed: str) -> tuple[str, str]:
    """Both traces without what became of the requests that BLIS calls incomplete."""
    tables = [list(csv.reader(text.splitlines())) for text in (theirs, printed)]
    places = [tables[0][0].index(name) for name in OF_SPLIT]
    for row, other in zip(*tables, strict=False):
        if row[places[-1]] == "incomplete":
            for place in places:
                row[place] = other[place] = ""
    first, second = ("\n".join(map(",".join, table)) for table in tables)
    return first, second


def _shared(document: dict[str, Any]) -> dict[str, Any]:
    """What both say, requests that arrive together by their names: their order is that of Go's sort."""
    shared = {name: value for name, value in sorted(document.items()) if name not in OURS}
    for request in shared.get("requests") or ():
        for name in OF_CLIENT:
            request.pop(name, None)
    shared.get("requests", []).sort(
        key=lambda request: (request["arrived_at"], request["requestID"])
    )
    return shared


def compare(line: Line, program: Path, repository: Path, folder: Path) -> str:
    """Return what BLIS and blis-jax made of a line, and in how many seconds."""
    outs = [Path(tempfile.mkdtemp(dir=folder)) for _ in range(2)]

    def blis(*words: str) -> subprocess.CompletedProcess[str]:
        """Run BLIS in its folder, where it finds its defaults."""
        return subprocess.run(
            [program, *words],
            cwd=repository,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    try:
        if line.first and blis("run", *line.first).returncode:
            return "refused"
        began = time.perf_counter()
        theirs = blis(*line.command, *(word.replace(OUT, f"{outs[0]}/") for word in line.words))
    except subprocess.TimeoutExpired:
        return f"no end: BLIS ran for {LIMIT_S} s"
    wall, cpu = time.perf_counter() - began, time.process_time()
    outcome = verdict(theirs, *ours(line, outs[1]))
    if outcome == "equal" and (different := of_files(*outs, "--prefill-instances" in line.words)):
        outcome = f"different:{different}"
    return f"{outcome} ({wall:.2f} s, {time.process_time() - cpu:.1f} s)"


def main(argv: list[str] | None = None) -> int:
    """Compare the lines; 1 if some are not equal."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.blis", description=__doc__)
    parser.add_argument("--repository", type=Path, required=True)
    parser.add_argument("--program", type=Path)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args(argv)
    program = (options.program or options.repository / "blis").resolve()
    if not program.is_file() or not (options.repository / "defaults.yaml").is_file():
        parser.error(f"{program} and {options.repository}/defaults.yaml: one of them is not there")
    prepare_backend()
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.first, options.first + options.runs):
            drawn = line(number, Path(folder))
            outcome = compare(drawn, program, options.repository, Path(folder))
            counts[outcome.split(":")[0].split(" (")[0]] += 1
            words = "" if outcome.startswith("equal") else " ".join((*drawn.command, *drawn.words))
            print(number, outcome, words, flush=True)
    print(", ".join(f"{count} {name}" for name, count in counts.most_common()))
    return 0 if counts.keys() <= {"equal", "refused"} else 1


if __name__ == "__main__":
    sys.exit(main())

"""Random command lines of BLIS, by BLIS and by blis-jax: is all that is printed and written equal?

python -m benchmarks.blis --repository FOLDER [--program FILE] [--revision NAME] [--runs N] [--first K]

FOLDER is a checkout of BLIS (it has defaults.yaml), the program its compiled `blis`, in that folder if none is given.
The revision is blis-2026-08 (commit f90a1e3a) if none is given, or blis-2026-02 (commit e01862e3). Line K is the same
on every machine. A line that both refuse counts as refused. One that only one of them refuses, or whose texts differ,
is printed with the first differences, and the exit code is 1. The seconds of both stand beside it: BLIS's are wall
time of the whole command, ours CPU time within a process that has been started, compiling included.
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

from benchmarks.blis import february, lines
from benchmarks.blis.files import REPOSITORY
from benchmarks.blis.lines import METRICS, OUT, Line
from blis_jax.backend import prepare_backend
from blis_jax.commands.door.dispatch import main as main_of_blis_jax

OURS = ("kv", "provenance")  # what ours says besides in the file of metrics
OF_CLIENT = ("client_ttft_ms", "client_e2e_ms")  # where a client has a network
OF_SPLIT = ("first_chunk_time_us", "last_chunk_time_us", "status")
REVISIONS = {"blis-2026-08": lines.line, "blis-2026-02": february.line}
TRIES = 24  # of BLIS, whose output is not always the same
LIMIT_S = 25  # for BLIS; some of its runs never end


def ours(line: Line, out: Path, revision: str = "blis-2026-08") -> tuple[bool, str, str]:
    """Run a line's command with blis-jax; return whether it succeeded, its standard output and its standard error."""
    words = [word.replace(OUT, f"{out}/") for word in line.words]
    profile = ["--profile", revision] if line.command == ("run",) else []
    printed, said = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said):
        code: object
        try:
            code = main_of_blis_jax([*line.command, *profile, *words])
        except SystemExit as stopped:
            code = stopped.code
    return not code, printed.getvalue(), said.getvalue()


def verdict(theirs: subprocess.CompletedProcess[str], made: bool, printed: str, said: str) -> str:
    """Return a line's verdict: equal, refused (by both or one), or different, with the first lines that differ."""
    if theirs.returncode or not made:
        if theirs.returncode and not made:
            return "refused"
        who, text = ("BLIS", theirs.stderr) if theirs.returncode else ("blis-jax", said)
        return f"refused by {who} alone: {text.strip().splitlines()[-1]}"
    different = differences(theirs.stdout, printed)
    return f"different:{different}" if different else "equal"


def differences(theirs: str, printed: str) -> str:
    """Return the first four pairs of lines that differ, as text; empty if all lines are equal."""
    pairs = itertools.zip_longest(theirs.splitlines(), printed.splitlines(), fillvalue="")
    different = [f"\n  BLIS {a.strip()} | blis-jax {b.strip()}" for a, b in pairs if a != b]
    return "".join(different[:4])


def of_files(theirs: Path, out: Path, has_pools: bool) -> str:
    """Return how the files in two folders differ; empty if they do not.

    BLIS records no times of requests that pools have split (docs/how-to/trace-formats.md), so ours are not compared.
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
    """Return both traces without the results of requests that BLIS calls incomplete."""
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


def placed(line: Line, repository: Path) -> Line:
    """Return the line with the checkout's path in place of `REPOSITORY`."""
    words, first = (
        [word.replace(REPOSITORY, f"{repository.resolve()}/") for word in words]
        for words in (line.words, line.first)
    )
    return Line(line.command, words, first)


def compare(line: Line, program: Path, repository: Path, folder: Path, revision: str) -> str:
    """Run a line with BLIS and with blis-jax; return the verdict, and the seconds that each took.

    Some of what BLIS prints differs from run to run, such as its count of priority inversions where requests arrive
    together. So BLIS runs up to `TRIES` times, until it prints what blis-jax printed.
    """

    line = placed(line, repository)

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

    out, outcomes = Path(tempfile.mkdtemp(dir=folder)), list[str]()
    wall, cpu, made = 0.0, 0.0, (False, "", "")
    while not outcomes or (outcomes[-1].startswith("different") and len(outcomes) < TRIES):
        written = Path(tempfile.mkdtemp(dir=folder))
        began = time.perf_counter()
        try:
            if line.first and not outcomes and blis("run", *line.first).returncode:
                return "refused"
            theirs = blis(*line.command, *(w.replace(OUT, f"{written}/") for w in line.words))
        except subprocess.TimeoutExpired:
            return f"no end: BLIS ran for {LIMIT_S} s"
        if not outcomes:
            wall, cpu = time.perf_counter() - began, time.process_time()
            made = ours(line, out, revision)
            cpu = time.process_time() - cpu
        outcome = verdict(theirs, *made)
        if outcome == "equal":
            different = of_files(written, out, "--prefill-instances" in line.words)
            outcome = f"different:{different}" if different else "equal"
        outcomes.append(outcome)
    last = outcomes[-1] if outcomes[-1] == "equal" else outcomes[0]
    return f"{last} ({wall:.2f} s, {cpu:.1f} s)"


def main(argv: list[str] | None = None) -> int:
    """Compare the lines; return exit code 1 if some are not equal."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.blis", description=__doc__)
    parser.add_argument("--repository", type=Path, required=True)
    parser.add_argument("--program", type=Path)
    parser.add_argument("--revision", choices=REVISIONS, default="blis-2026-08")
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
            drawn = REVISIONS[options.revision](number, Path(folder))
            outcome = compare(drawn, program, options.repository, Path(folder), options.revision)
            counts[outcome.split(":")[0].split(" (")[0]] += 1
            words = "" if outcome.startswith("equal") else " ".join((*drawn.command, *drawn.words))
            print(number, outcome, words, flush=True)
    print(", ".join(f"{count} {name}" for name, count in counts.most_common()))
    return 0 if counts.keys() <= {"equal", "refused"} else 1


if __name__ == "__main__":
    sys.exit(main())

"""Stages that make a few words, for tests of the store, the gates and their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sweeps.promote.gates import CHECKS, decide, run_all
from sweeps.promote.golang.target import TargetVersion
from sweeps.promote.promotion import Finding, GateClosedError
from sweeps.promote.stages import APPROVE, STAGES, Stage, StageWork
from sweeps.promote.store import GATES, PromotionStore

IDENTITY = {"strategy": "mine.yaml", "baseline": "iter00_baseline", "target": "llm-d-router@0.10.0"}
PROMOTION: Any = SimpleNamespace(
    target=IDENTITY["target"], given=IDENTITY["strategy"], image="a/b:c"
)
EVIDENCE = {"seeds": [1, 2, 3], "survival_seeds": 3, "num_requests": None}
HYPOTHESES = """\
- id: A-1
  track: A
  statement: The treatment is faster.
  metric: {path: results.request_performance.aggregate.latency.time_to_first_token, statistic: p99, unit: ms,
           better: lower}
  expected: {direction: lower}
  arms: [baseline, control, treatment]
  runs: 3
  diagnostic: The order of requests does not matter.
"""


def _behind(name: str) -> Any:
    """Return a stage whose files depend on everything before it, and on the options."""

    def make(work: StageWork) -> dict[str, str]:
        options = (work.options,) if work.options else ()
        size = sum(map(len, work.files.values())) + len(str(options))
        return {
            f"{name}/one.txt": f"{size} characters before, {options}\n",
            f"{name}/two.txt": "two\n",
        }

    return make


MAKERS: dict[str, Any] = {
    "maps": lambda work: {"maps.yaml": "rows: 1\n"},
    "translate": lambda work: {"plugins/a.go": "package a\n", "configs/epp.yaml": "kind: EPP\n"},
    "hypothesise": lambda work: {"hypotheses.yaml": HYPOTHESES},
    "tests": lambda work: {"profiles/a.yaml": "load: 1\n", "tests/evaluate.sh": "#!/bin/sh\n"},
    "validate": _behind("evidence"),
    "document": _behind("documents"),
    "bundle": _behind("bundle"),
}


def stages() -> dict[str, Stage]:
    """Return the stages, each of which makes a few words."""
    return {name: replace(STAGES[name], make=make) for name, make in MAKERS.items()}


def checks(findings: Sequence[Finding] = ()) -> dict[int, Any]:
    """Return the checks of the gates, with these findings at the first two."""
    return {
        gate: lambda promotion, files, g=gate: list(findings) if g < 3 else [] for gate in GATES
    }


def stand_in(patch: pytest.MonkeyPatch, findings: Sequence[Finding] = ()) -> None:
    """Put stages and checks of a few words in the place of the true ones."""
    for name, stage in stages().items():
        patch.setitem(STAGES, name, stage)
    for gate, check in checks(findings).items():
        patch.setitem(CHECKS, gate, check)


def finish(folder: Path) -> None:
    """A promotion from where it stands to its end, every gate approved."""
    STAGES.update(stages())
    CHECKS.update(checks())
    store = PromotionStore(folder)
    with store.writing():
        store.begin(IDENTITY)
        for gate in (1, 2, 3, None):
            try:
                run_all(store, PROMOTION, EVIDENCE, lambda line: None)
                return
            except GateClosedError as error:
                if gate is None:
                    raise
                decide(store, int(str(error).split()[1]), APPROVE, "A. Reviewer", "read")


def artifacts(folder: Path) -> dict[str, str]:
    """Everything but the history, the journal of a validation, and locks."""
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and not path.name.startswith(("history", ".history", "validate.", ".validate."))
    }


def minimal_runner(target: TargetVersion) -> str:
    """A file in which the patch finds its places, for `git apply --check` without the repository."""
    runner = target.manifest["runner"]
    lines: list[str] = []
    for place in (runner["import_after"], runner["register_after"]):
        lines += ["//"] * (int(place["line"]) - 1 - len(lines))
        lines += [place["before"], place["after"]]
    return "\n".join(lines) + "\n"

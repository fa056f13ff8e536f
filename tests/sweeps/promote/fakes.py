"""Stages that make a few words, for tests of the store, the gates and their order."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from sweeps.promote.gates import APPROVE, GateClosedError, decide
from sweeps.promote.golang.target import TargetVersion
from sweeps.promote.promotion import Finding
from sweeps.promote.running import run_all
from sweeps.promote.store import PromotionStore

IDENTITY = {"strategy": "mine.yaml", "baseline": "iter00_baseline", "target": "llm-d-router@0.10.0"}
PROMOTION: Any = SimpleNamespace(target=IDENTITY["target"], given=IDENTITY["strategy"])
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


def modules(findings: list[Finding] | None = None) -> dict[str, ModuleType]:
    """What stands for the parts that make the files of the stages, by the name of the module."""
    found: dict[str, ModuleType] = {}

    def module(name: str, **functions: Any) -> None:
        package = name.rpartition(".")[0]
        if package and package not in (
            "sweeps.promote",
            "sweeps.promote.evidence",
            "sweeps.promote.documents",
        ):
            found.setdefault(package, ModuleType(package)).__path__ = []  # type: ignore[attr-defined]
        made = ModuleType(name)
        for key, function in functions.items():
            setattr(made, key, function)
        found[name] = made

    def plugins_of(promotion: Any) -> Any:
        return SimpleNamespace(files={"plugins/a.go": "package a\n"}, generated=())

    def of(name: str) -> Any:
        """Files that depend on everything before them, and on the options."""

        def make(promotion: Any, files: Mapping[str, str], *options: Any) -> dict[str, str]:
            size = sum(map(len, files.values())) + len(str(options))
            return {
                f"{name}/one.txt": f"{size} characters before, {options}\n",
                f"{name}/two.txt": "two\n",
            }

        return make

    base = "sweeps.promote"
    module(f"{base}.maps.stage", maps_files=lambda promotion: {"maps.yaml": "rows: 1\n"})
    module(f"{base}.golang.plugins", plugins_of=plugins_of)
    module(f"{base}.golang.toolchain", check_go=lambda files: [])
    module(
        f"{base}.configs.stage",
        config_files=lambda promotion, _: {"configs/epp.yaml": "kind: EPP\n"},
    )
    module(f"{base}.checks.findings", findings_of=lambda files, target: list(findings or []))
    module(
        f"{base}.hypotheses.stage",
        hypothesis_files=lambda promotion, maps: {"hypotheses.yaml": HYPOTHESES},
    )
    module(
        f"{base}.hypotheses.profiles", profile_files=lambda text: {"profiles/a.yaml": "load: 1\n"}
    )
    module(
        f"{base}.evidence.stage", evidence_files=of("evidence"), VERDICTS="evidence/verdicts.yaml"
    )
    module(
        f"{base}.evidence.rules",
        evidence_findings=lambda files: [],
        hypothesis_findings=lambda files: [],
    )
    module(f"{base}.documents.stage", document_files=of("documents"))
    module(f"{base}.documents.bundle", bundle_files=of("bundle"))
    return found


def finish(folder: Path) -> None:
    """A promotion from where it stands to its end, every gate approved."""
    sys.modules.update(modules())
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
    """Everything but the history and locks."""
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(("history", ".history"))
    }


def minimal_runner(target: TargetVersion) -> str:
    """A file in which the patch finds its places, for `git apply --check` without the repository."""
    runner = target.manifest["runner"]
    lines: list[str] = []
    for place in (runner["import_after"], runner["register_after"]):
        lines += ["//"] * (int(place["line"]) - 1 - len(lines))
        lines += [place["before"], place["after"]]
    return "\n".join(lines) + "\n"

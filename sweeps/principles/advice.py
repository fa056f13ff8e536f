"""A strategy held against the catalogue: which principles it touches, with advice and measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.commands import cli
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import write_json
from sweeps.principles import USUAL_OUTPUT
from sweeps.principles.catalogue import Entry, load_catalogue
from sweeps.principles.rules import instances as instance_rules
from sweeps.principles.rules import routing as routing_rules
from sweeps.principles.rules.facts import Case, facts_of
from sweeps.principles.rules.touch import Touch

if TYPE_CHECKING:
    from sweeps.strategies.arms import Arm

NAME = "sweeps.principles"
USUAL_SEEDS = (42, 43, 44)
MEASURED = ("ttft_p99_ms", "completion_rate")


def advise(
    given: Mapping[str, Any], entries: Sequence[Entry], seeds: tuple[int, ...] | int | None
) -> int:
    """Prints what the rules find on a strategy; the exit code."""
    from sweeps.strategies.arms import arm_of

    arm = arm_of(given["strategy"])
    path = Path(given["output"]) if "output" in given else None
    if path is not None:
        if path.suffix != ".json":
            raise ConfigError(f"--output: {str(path)!r} must end in .json")
        cli.check_writable(path)
    on = _seeds(arm, seeds)
    case = case_of(arm, on[0])
    wanted = {entry.id: entry for entry in entries}
    found = [touch for touch in touches(case) if touch.principle in wanted]
    verdicts = _verdicts(given)
    measured: list[list[dict[str, Any]]] = [[] for _ in found]
    if "measure" in given:
        measured = _measured(given, case, found, on)
    documents = [
        _document(touch, wanted[touch.principle], verdicts, rows)
        for touch, rows in zip(found, measured, strict=True)
    ]
    for line in _lines(arm.name, documents):
        print(line)
    if path is not None:
        with cli.writing(path):
            write_json(path, {"strategy": arm.name, "seeds": on, "findings": documents})
        print(f"Written: {path}")
    return 0


def touches(case: Case) -> list[Touch]:
    """All that the rules find."""
    rules = (*routing_rules.RULES, *instance_rules.RULES)
    return [touch for rule in rules for touch in rule(case)]


def case_of(arm: Arm, seed: int) -> Case:
    """An arm with its workload: that of its strategy file, or `mixed`."""
    from blis_jax.workload.spec import load_builtin
    from sweeps.runs.bench import workload_of
    from sweeps.strategies.space import space_of

    if arm.strategy is None:
        spec = load_builtin("mixed")
    else:
        spec = workload_of(arm.strategy, space_of(arm.strategy).num_requests)
    return Case(arm.config, spec, facts_of(arm.config, spec, seed), arm.strategy)


def _seeds(arm: Arm, given: tuple[int, ...] | int | None) -> tuple[int, ...]:
    own = arm.strategy.seeds if arm.strategy is not None else USUAL_SEEDS
    if given is None:
        return own
    return tuple(range(own[0], own[0] + given)) if isinstance(given, int) else given


def _verdicts(given: Mapping[str, Any]) -> dict[str, str]:
    """What checks on this code gave, as far as they were made with the entries' own seeds."""
    from sweeps.principles.record import PrinciplesRecord, code_hash, identity

    record = PrinciplesRecord(Path(USUAL_OUTPUT).with_suffix(".jsonl"))
    try:
        checks = dict(record.lines())
    except ConfigError:  # of another version, so none of its checks is of this code
        return {}
    catalogue, code = load_catalogue(), code_hash()
    found = {}
    for entry in catalogue.entries.values():
        key = identity(catalogue, entry, entry.seeds, given.get("rng", "reference"), False, code)
        if key in checks:
            found[entry.id] = str(checks[key]["verdict"])
    return found


def _document(
    touch: Touch, entry: Entry, verdicts: Mapping[str, str], rows: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        **asdict(touch),
        "statement": entry.statement,
        "verdict": verdicts.get(entry.id),
        "catalogue_verdict": entry.verdict,
        "measured": rows,
    }


def _lines(name: str, documents: Sequence[Mapping[str, Any]]) -> list[str]:
    if not documents:
        return [f"{name}: no principle is touched."]
    lines = [f"{name} touches {len({entry['principle'] for entry in documents})} principles:"]
    for entry in documents:
        verdict = entry["verdict"] or f"{entry['catalogue_verdict']} in the catalogue, not run here"
        lines += [
            f"  {entry['setting']} {entry['relation']} {entry['principle']} ({verdict}): "
            f"{entry['statement']}",
            f"      {entry['advice']}",
        ]
        lines += [f"      {row['text']}" for row in entry["measured"]]
    return lines


# --- measurement ----------------------------------------------------------------------------------


def _measured(
    given: Mapping[str, Any], case: Case, found: Sequence[Touch], seeds: tuple[int, ...]
) -> list[list[dict[str, Any]]]:
    """For every finding the strategy against itself with the settings that the finding proposes."""
    from sweeps.principles.figures import figures_of
    from sweeps.runs.bench import Bench

    classes = list(dict.fromkeys(client.slo_class or "default" for client in case.spec.clients))
    names = [f"{name}[{slo_class}]" for name in MEASURED for slo_class in classes]
    names += list(MEASURED)
    others = {
        at: case.config.replace(**touch.instead) for at, touch in enumerate(found) if touch.instead
    }
    configs = list(dict.fromkeys([case.config, *others.values()]))
    bench = Bench(case.spec, seeds, given.get("rng", "reference"), (), None, len(configs))
    made = bench.summaries(configs, lambda record: figures_of(record, names, True))
    runs = dict(zip(configs, made, strict=True))
    rows: list[list[dict[str, Any]]] = [[] for _ in found]
    for at, config in others.items():
        rows[at] = _compared(runs[case.config], runs[config], classes, found[at].instead)
    return rows


def _compared(
    first: Sequence[Any], second: Sequence[Any], classes: Sequence[str], instead: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Rows by class: the strategy, the strategy changed, and the paired difference."""
    from blis_jax.statistics.intervals import BY_STUDENT
    from blis_jax.statistics.paired import Pair, differences

    changed = ", ".join(f"{name}={value}" for name, value in instead.items())
    failed = [run.outcome for run in (*first, *second) if not run.is_whole]
    if failed:
        return [{"instead": changed, "text": f"{changed}: a run ended with {failed[0]}"}]
    if all(np.array_equal(a.requests, b.requests) for a, b in zip(first, second, strict=True)):
        return [{"instead": changed, "text": f"{changed}: every request exactly as before"}]
    metrics = {name: f"ttft_p99_ms[{name}]" for name in classes} | {"all": "ttft_p99_ms"}
    pairs = [
        Pair(
            np.array([run.value(metric) for run in first]),
            np.array([run.value(metric) for run in second]),
        )
        for metric in metrics.values()
    ]
    rows = []
    for slo_class, pair, change in zip(metrics, pairs, differences(pairs, BY_STUDENT), strict=True):
        before, after = pair.first, pair.second
        text = (
            f"{changed}: {slo_class} TTFT P99 {before.mean():.1f} -> {after.mean():.1f} ms, "
            f"{change.percent.mean:+.1f} % [{change.percent.low:+.1f}, {change.percent.high:+.1f}], "
            f"{change.verdict}"
        )
        rows.append(
            {
                "instead": changed,
                "slo_class": slo_class,
                "before_ms": before.tolist(),
                "after_ms": after.tolist(),
                "verdict": change.verdict,
                "text": text,
            }
        )
    return rows

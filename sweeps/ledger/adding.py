"""Rows from options or files: write the hypothesis, run it, then write its result."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from blis_jax.commands.options.seed_options import seeds_text
from blis_jax.errors import ConfigError, closest
from blis_jax.files.chain import Record
from blis_jax.files.input_files import read_text
from blis_jax.files.strict_yaml import read_mapping
from blis_jax.policies.seeds import BY_WORKLOAD
from sweeps.claims.words import (
    BEFORE,
    CROSS_POLICY,
    DOMINANCE,
    JAX_RUNS,
    REFERENCE_RUNS,
    VALIDATION,
)
from sweeps.ledger import render
from sweeps.ledger.book import (
    Ledger,
    LedgerRow,
    check_verdict,
    options_of,
    run_until_enough,
    stopping_from,
    values_of,
)
from sweeps.ledger.hypothesis import (
    Hypothesis,
    category_named,
    family_named,
    hypothesis_of,
    type_named,
)
from sweeps.ledger.result import (
    check_published,
    conclusions,
    criteria_hash,
    is_on_problem,
    judge_on_track,
    judgement_content,
    measured_from_runs,
    runs_content,
)
from sweeps.ledger.trial import (
    BASELINE,
    STRATEGY,
    Experiments,
    arm_records,
    config_of,
    versions,
    workload_record,
)
from sweeps.runs.requests import check_seeds
from sweeps.strategies.arms import arm_of
from sweeps.tracks.criteria import broken_constraints, metrics_of
from sweeps.tracks.problem import workload_named

COMMAND = "python -m sweeps.ledger"
ABOUT_STOPPING = ("decide", "precision", "most_seeds")
ABOUT_RUNS = (
    "strategy", "baseline", "reference", "workload", "rate", "over", "seeds", "rng", *ABOUT_STOPPING,
)  # fmt: skip
ABOUT_HYPOTHESIS = (
    "hypothesis", "predict", "published", "family", "vvuq", "type", "mechanism", "diagnostic", "name",
    "origin", "preconditions", "registered", "evidence",
)  # fmt: skip
AFTERWARDS = ("findings", "resolution", "verdict")
KEYS = ("id", *ABOUT_RUNS, *ABOUT_HYPOTHESIS, *AFTERWARDS)
Tell = Callable[[str], None]


def hypothesis_from(values: Mapping[str, Any], ledger: Ledger) -> Hypothesis:
    """Return the hypothesis that options or an entry of a file describe; values not given come from the track's
    problem.

    Raises:
        ConfigError: the hypothesis or its diagnostic clause is missing, or does not fit its
            kind.
    """
    for key, option in (("hypothesis", "--hypothesis"), ("diagnostic", "--diagnostic")):
        if not values.get(key):
            raise ConfigError(
                f"{values['id']} has no {key} yet; give {option}, the ledger keeps it before the run"
            )
    content: dict[str, Any] = {
        "id": values["id"],
        "statement": values["hypothesis"],
        "family": family_named(values.get("family", CROSS_POLICY)),
        "vvuq": category_named(values.get("vvuq", VALIDATION)),
        "type": type_named(values.get("type", DOMINANCE)),
        "diagnostic": values["diagnostic"],
        "predictions": tuple(values.get("predict", ())),
        "published": tuple(values.get("published", ())),
        "origin": values.get("origin", ""),
        "preconditions": values.get("preconditions", ""),
        "registered": values.get("registered", BEFORE),
        "criteria": criteria_hash(ledger.problem),
    }
    evidence = str(values.get("evidence") or _evidence(values, ledger))
    content["evidence"] = evidence
    if evidence in (REFERENCE_RUNS, JAX_RUNS):
        content |= _runs_of(values, ledger, evidence)
    else:
        content |= _without_runs(values)
    hypothesis = hypothesis_of(content)
    check_published(hypothesis.published_claims)
    return hypothesis


def _evidence(values: Mapping[str, Any], ledger: Ledger) -> str:
    stream = values.get("rng", ledger.problem.rng)
    return JAX_RUNS if stream == "jax" else REFERENCE_RUNS


def _runs_of(values: Mapping[str, Any], ledger: Ledger, evidence: str) -> dict[str, Any]:
    """Return arms, workload and seeds of a hypothesis that is decided by runs."""
    problem = ledger.problem
    if not values.get("strategy"):
        raise ConfigError(f"{values['id']} has no strategy; give --strategy, or --evidence judge")
    baseline, over = values.get("baseline", problem.baseline), values.get("over", "")
    arms = arm_records(values["strategy"], baseline, values.get("reference"), over)
    seeds = tuple(values.get("seeds") or problem.seeds_for_verdicts)
    check_seeds(seeds, "jax" if evidence == JAX_RUNS else "reference")
    workload = values.get("workload", problem.workload)
    rate = values.get("rate", None if "workload" in values else problem.rate)
    arm = arm_of(values["strategy"])
    described = arm.strategy.description if arm.strategy is not None else ""
    return {
        "arms": arms,
        "workload": workload_record(workload, ledger.folder, rate),
        "seeds": seeds,
        "stopping": stopping_from(values, seeds),
        "over": over,
        "profile": arm.config.profile,
        "name": values.get("name") or arms[STRATEGY].strategy,
        "mechanism": values.get("mechanism") or described or arms[STRATEGY].strategy,
    }


def _without_runs(values: Mapping[str, Any]) -> dict[str, Any]:
    unused = [key for key in ABOUT_RUNS if key in values and key != "strategy"]
    if unused or values.get("predict"):
        option = (unused or ["predict"])[0]
        raise ConfigError(f"--{option} is about runs, but the evidence is {values['evidence']}")
    name = values.get("name") or values.get("strategy")
    if not name:
        raise ConfigError(f"{values['id']} has no name; give --name of what is judged")
    return {"name": name, "mechanism": values.get("mechanism") or name}


def command_of(hypothesis: Hypothesis) -> str:
    """Return the command line that makes the row's runs."""
    words = ["add", hypothesis.id]
    if hypothesis.is_simulated and hypothesis.workload is not None:
        for role, arm in hypothesis.arms.items():
            if "=" not in role:
                words += [f"--{role}", arm.text]
        words += ["--workload", hypothesis.workload.name]
        if hypothesis.workload.rate is not None:
            words += ["--rate", f"{hypothesis.workload.rate:g}"]
        if hypothesis.over:
            words += ["--over", hypothesis.over]
        stream = "jax" if hypothesis.evidence == JAX_RUNS else "reference"
        words += ["--seeds", seeds_text(hypothesis.seeds), "--rng", stream]
        words += options_of(hypothesis.stopping)
    else:
        words += ["--evidence", hypothesis.evidence]
    return f"{COMMAND} {shlex.join(words)}"


def experiments_for(ledger: Ledger) -> Experiments:
    """Return experiments that also measure the metrics of the track's criteria."""
    problem = ledger.problem
    spec = workload_named(problem.workload, problem.folder, problem.rate)
    return Experiments(metrics_of(problem, spec.slo_classes))


# --- adding ---------------------------------------------------------------------------------------


def add_row(
    ledger: Ledger, values: Mapping[str, Any], experiments: Experiments, tell: Tell | None = None
) -> Record:
    """Plan the row unless it is planned, run it, and write its result."""
    row = planned_row(ledger, values)
    if row.result is not None:
        raise ConfigError(
            f"{row.id} has a result already (record {row.result['number']}); records never change, "
            "plan a repetition under another id"
        )
    _check_verdict_given(row.hypothesis, values)
    if tell is not None:
        tell(f"{row.id}: hypothesis is record {row.planned['number']}, {row.planned['hash'][:12]}")
    if row.hypothesis.is_simulated:
        content = _simulated(ledger, row, experiments, values)
    else:
        content = {"verdict": values["verdict"], "status": values["verdict"]}
    content |= {
        "evidence": row.hypothesis.evidence,
        "command": command_of(row.hypothesis),
        "findings": values.get("findings", ""),
    }
    record = ledger.add_result(row, content)
    render.write(ledger)
    return record


def planned_row(ledger: Ledger, values: Mapping[str, Any]) -> LedgerRow:
    """Return the row with this id if it is planned; plan it otherwise.

    Raises:
        ConfigError: options contradict the planned row.
    """
    existing = {row.id: row for row in ledger.rows()}
    row = existing.get(values["id"])
    if row is None:
        return ledger.plan(hypothesis_from(values, ledger))
    named = {key for key in (*ABOUT_RUNS, *ABOUT_HYPOTHESIS) if key in values}
    if named:
        _check_same(row, hypothesis_from({**_defaults(row), **values}, ledger))
    elif row.hypothesis.is_simulated:
        _check_arms(row)
    return row


def _defaults(row: LedgerRow) -> dict[str, Any]:
    """Return the planned row's values, as options."""
    hypothesis = row.hypothesis
    defaults: dict[str, Any] = {
        "hypothesis": hypothesis.statement,
        "predict": hypothesis.predictions,
        "published": hypothesis.published,
        "over": hypothesis.over,
    }
    same = ("family", "vvuq", "type", "diagnostic", "name", "mechanism", "origin")
    defaults |= {name: getattr(hypothesis, name) for name in (*same, "preconditions", "registered")}
    if not hypothesis.is_simulated:
        defaults["evidence"] = hypothesis.evidence
    elif hypothesis.workload is not None:
        defaults["rng"] = "jax" if hypothesis.evidence == JAX_RUNS else "reference"
        defaults |= {role: arm.text for role, arm in hypothesis.arms.items() if "=" not in role}
        defaults |= {"workload": hypothesis.workload.name, "seeds": hypothesis.seeds}
        defaults |= values_of(hypothesis.stopping)
        if hypothesis.workload.rate is not None:
            defaults["rate"] = hypothesis.workload.rate
    return defaults


def _check_same(row: LedgerRow, now: Hypothesis) -> None:
    """Refuse a hypothesis that differs from the one planned under the same id."""
    before, after = (
        hypothesis.model_dump(exclude={"criteria"}) for hypothesis in (row.hypothesis, now)
    )
    for name in before:
        if before[name] != after[name]:
            raise ConfigError(
                f"{row.id} was planned with another {name} (record {row.planned['number']}); a "
                "hypothesis does not change, choose another id"
            )


def _check_arms(row: LedgerRow) -> None:
    texts = {role: arm.text for role, arm in row.hypothesis.arms.items()}
    now = arm_records(texts[STRATEGY], texts[BASELINE], texts.get("reference"), row.hypothesis.over)
    for role, arm in row.hypothesis.arms.items():
        if now[role].hash != arm.hash:
            raise ConfigError(
                f"{row.id}: the {role} {arm.text} has other settings than when the hypothesis was "
                "written; restore its file, or plan again under another id"
            )


def _check_verdict_given(hypothesis: Hypothesis, values: Mapping[str, Any]) -> None:
    is_judged = hypothesis.is_simulated and hypothesis.predictions
    verdict = values.get("verdict")
    if is_judged and verdict:
        raise ConfigError(
            f"{hypothesis.id} has predictions, so its verdict follows from the runs; leave --verdict out"
        )
    if not is_judged and not verdict:
        raise ConfigError(
            f"{hypothesis.id} has no prediction that runs could judge; give --verdict"
        )
    if verdict:
        check_verdict(verdict)
        if not values.get("findings"):
            raise ConfigError(f"{hypothesis.id}: a verdict without a computation needs --findings")


def _simulated(
    ledger: Ledger, row: LedgerRow, experiments: Experiments, values: Mapping[str, Any]
) -> dict[str, Any]:
    problem, stopped = ledger.problem, run_until_enough(row.hypothesis, ledger.folder, experiments)
    hypothesis, runs = stopped.hypothesis, stopped.runs
    measured = measured_from_runs(runs)
    content: dict[str, Any] = {
        "profile": hypothesis.profile,
        "seeds": list(hypothesis.seeds),
        **stopped.content(),
        "policy_seeds": BY_WORKLOAD,
        "versions": versions(),
        "runs": runs_content(runs, measured),
        **conclusions(hypothesis, measured),
    }
    if not hypothesis.predictions:
        content |= {"verdict": values["verdict"], "status": values["verdict"]}
    arm = hypothesis.arms[STRATEGY]
    if arm.hash != hypothesis.arms[BASELINE].hash:
        strategy = arm_of(arm.text).strategy
        broken = broken_constraints(problem, config_of(arm.settings), strategy)
        content["broken_constraints"] = broken
    if is_on_problem(hypothesis, problem):
        judged = judge_on_track(
            hypothesis, problem, ledger.folder, measured, experiments, content["verdict"]
        )
        content["criteria"] = judgement_content(judged)
        content["criteria_changed"] = hypothesis.criteria != criteria_hash(problem)
    return content


# --- files ----------------------------------------------------------------------------------------


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read the entries of a YAML file: `rows`, with `defaults` that apply to all rows.

    Raises:
        ConfigError: the file has another form, an unknown key, or an id twice.
    """
    source = path.name
    data = read_mapping(read_text(path, "rows in YAML"), source)
    unknown = set(data) - {"rows", "defaults"}
    if unknown or not isinstance(data.get("rows"), list):
        raise ConfigError(f"{source}: allowed are rows, a list, and defaults")
    defaults = data.get("defaults") or {}
    entries = []
    for place, entry in enumerate(data["rows"]):
        where = f"{source}: rows[{place}]"
        if not isinstance(entry, dict) or "id" not in entry:
            raise ConfigError(f"{where}: allowed is a mapping with an id")
        merged = {**defaults, **entry, "id": str(entry["id"])}
        for key in merged:
            if key not in KEYS:
                raise ConfigError(
                    f"{where}: {key}: the key is unknown; use {', '.join(KEYS)}{closest(key, KEYS)}"
                )
        entries.append(merged)
    names = [entry["id"] for entry in entries]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{source}: id {name!r} is given twice; ids differ")
    return entries


def add_file(
    ledger: Ledger,
    entries: Sequence[Mapping[str, Any]],
    tell: Tell,
    show: Callable[[int, str], None],
) -> int:
    """Add every row of a file that the ledger lacks, in order; return how many were added."""
    known = {row.id for row in ledger.rows()}
    for entry in entries:  # all of them before the first is run
        if entry["id"] not in known:
            hypothesis_from(entry, ledger)
    experiments, added = experiments_for(ledger), 0
    for place, entry in enumerate(entries):
        show(place, str(entry["id"]))
        row = planned_row(ledger, {k: v for k, v in entry.items() if k not in AFTERWARDS})
        if row.result is None:
            values = {"id": row.id} | {k: entry[k] for k in ("verdict",) if k in entry}
            if "verdict" in entry:
                values["findings"] = entry.get("findings", "")
            record = add_row(ledger, values, experiments)
            added += 1
            tell(f"{row.id}: {record['status']}")
        _note(ledger, entry)
    render.write(ledger)
    return added


def _note(ledger: Ledger, entry: Mapping[str, Any]) -> None:
    """Write the findings and the resolution of an entry to its row, unless they are already there."""
    row = ledger.row(str(entry["id"]))
    content = {key: entry[key] for key in ("findings", "resolution") if entry.get(key)}
    findings = " ".join(str(content.get("findings", "")).split())
    known = [" ".join(text.split()) for text in row.findings]
    is_known = (not findings or findings in known) and (
        "resolution" not in content or row.resolution == content["resolution"]
    )
    if content and not is_known:
        ledger.add_note(row.id, content)

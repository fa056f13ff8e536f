"""The catalogue of principles: its entries, its figures, its verdicts, and the command at a tiny size."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blis_jax.core.outcome import Outcome
from blis_jax.errors import ConfigError
from blis_jax.metrics.run_summary import RunSummary
from blis_jax.policies import registry, scorer
from blis_jax.policies.contexts import GatewayContext
from blis_jax.reports.render import text
from sweeps.claims.judge import ClaimVerdict
from sweeps.claims.words import FALSIFIED, HOLDS, NARROWER, NOT_SUPPORTED, UNTESTED
from sweeps.principles import __main__ as command
from sweeps.principles import probes
from sweeps.principles.catalogue import (
    Catalogue,
    Entry,
    PrincipleClaim,
    Range,
    WorkloadChoice,
    chosen,
    load_catalogue,
    parse_catalogue,
    workload_named,
)
from sweeps.principles.command import findings_of
from sweeps.principles.lab import Lab, arm_of, check_fair, information
from sweeps.principles.statistics import KINDS, Bound, compute
from sweeps.principles.verdicts import (
    EntryFinding,
    PrinciplesRecord,
    check,
    identity,
    metrics_of,
    verdict_of,
    words_of,
)
from sweeps.runs.requests import list_workloads
from tests.support.findings_forms import assert_all_forms_agree
from tests.sweeps.tiny import TINY as TINY_STRATEGY

TINY = """
groups:
  two: {num_instances: 2, routing_policy: weighted}
entries:
  - id: T-1
    statement: tiny
    evidence: none
    verdict: holds
    family: Scheduler invariants
    vvuq: Verification
    type: Deterministic
    falsified_if: anything differs
    workload: {name: lowload, num_requests: 12}
    arms:
      a: {from: [two]}
      b: {from: [two], set: {slo_priority_bridge: true}}
      other: {from: [two], set: {routing_scorers: "two-halves:1"}}
      slow: {from: [two], set: {max_num_scheduled_tokens: 64}}
    claims:
      - {says: differ, kind: differing, of: b, to: a, expected: {max: 0}, falsified: {above: 0}}
      - {says: completed, kind: value, metric: completion_rate, of: a, expected: {min: 1}}
      - {says: "smaller steps, the control", kind: ratio, of: slow, to: a, role: control, expected: {above: 1}}
  - id: T-2
    statement: waits for a scorer
    evidence: none
    verdict: untested
    family: Cross-policy comparative
    vvuq: Validation
    type: Dominance
    falsified_if: no better
    workload: {name: lowload, num_requests: 12}
    arms:
      a: {from: [two]}
      new: {from: [two], set: {routing_scorers: "two-halves:1"}}
    claims:
      - {says: new ÷ old, kind: ratio, of: new, to: a, expected: {min: 0.5, max: 2}}
"""


@pytest.fixture(scope="module")
def tiny() -> Catalogue:
    return parse_catalogue({"tiny.yaml": TINY})


@pytest.fixture(scope="module")
def lab(tiny: Catalogue) -> Lab:
    return Lab("reference", metrics_of(tiny.entries.values()))


# --- the catalogue that comes with the package ----------------------------------------------------


def test_all_principles_and_findings_are_there_and_can_be_built() -> None:
    catalogue = load_catalogue()
    names = set(catalogue.entries)
    assert {f"RP-{n}" for n in range(1, 15)} | {f"S{n}" for n in range(1, 17)} <= names
    assert {f"F{n}" for n in range(1, 12)} <= names
    metrics_of(catalogue.entries.values())
    for entry in catalogue.entries.values():
        arms = {name: arm_of(catalogue, entry, name) for name in entry.arms}
        check_fair(entry, arms)
        assert {claim.kind for claim in entry.claims} <= set(KINDS), entry.id
        used = {name for claim in entry.claims for name in claim.arms()}
        assert used == set(entry.arms), f"{entry.id} has arms that no claim uses"
        for claim in entry.claims:
            if claim.kind == "probe":
                assert claim.options["name"] in probes.PROBES
        assert len(entry.seeds) >= 3


def test_what_is_missing_today_is_named() -> None:
    catalogue = load_catalogue()
    missing = {
        entry.id: [arm_of(catalogue, entry, name).missing for name in entry.arms]
        for entry in catalogue.entries.values()
    }
    for entry_id, reasons in missing.items():
        is_untested = catalogue.entries[entry_id].verdict == UNTESTED
        if is_untested:
            assert any(reasons), f"{entry_id} is untested, but all that it needs is there"
        for reason in filter(None, reasons):
            assert "is not registered" in reason or "blis_jax has no setting" in reason


def test_workloads_of_the_routing_track() -> None:
    assert {"orth", "orth_gamma2", "mixed_slo", "groups10"} <= set(list_workloads())
    bursty = workload_named(WorkloadChoice(name="orth", cv=3.5, num_requests=7, prefixes=False))
    assert {client.arrival.cv for client in bursty.clients} == {3.5}
    assert bursty.num_requests == 7 and {client.prefix_group for client in bursty.clients} == {""}
    with pytest.raises(ConfigError, match="did you mean 'orth'"):
        workload_named(WorkloadChoice(name="orthh"))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("to: a, expected: {max: 0}", "to: c, expected: {max: 0}"), "arm 'c' is unknown"),
        (("from: [two], set: {slo", "from: [too], set: {slo"), "group 'too' is unknown"),
        (("type: Deterministic", "type: Pareto"), "type Pareto does not go with"),
        (("id: T-2", "id: T-1"), "given twice"),
        (("expected: {min: 0.5, max: 2}", "falsified: {max: 2}"), "needs what is expected"),
        (("falsified_if: no better", "falsified: no better"), "T-2"),
    ],
)
def test_refusals_name_the_entry(change: tuple[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_catalogue({"tiny.yaml": TINY.replace(*change)})


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"num_requests": 13}, "requests or horizon"),
        ({"horizon": 10**9}, "requests or horizon"),
        ({"aggregate_rate": 7.0}, "duration"),
    ],
)
def test_unequal_runs_are_not_compared(
    tiny: Catalogue, change: dict[str, Any], problem: str
) -> None:
    entry = tiny.entries["T-2"]
    arms = {"a": arm_of(tiny, entry, "a"), "new": arm_of(tiny, entry, "new")}
    check_fair(entry, arms)
    spec = arms["new"].spec.model_copy(update=change)
    arms["new"] = dataclasses.replace(arms["new"], spec=spec)
    with pytest.raises(
        ConfigError, match=f"a and new are compared, but differ in {problem}|new and a"
    ):
        check_fair(entry, arms)


def test_choice_of_entries(tiny: Catalogue) -> None:
    assert [entry.id for entry in chosen(tiny, " T-2,T-1")] == ["T-1", "T-2"]
    with pytest.raises(ConfigError, match="did you mean 'T-1'"):
        chosen(tiny, "T1")
    with pytest.raises(ConfigError, match="no entry is named"):
        chosen(tiny, ",")


# --- figures --------------------------------------------------------------------------------------


def run_of(outcome: str = "COMPLETED", requests: Any = None, **values: float) -> RunSummary:
    return RunSummary(Outcome[outcome], values, lives=requests)


def claim_of(kind: str, **fields: Any) -> PrincipleClaim:
    given = {"says": kind, "kind": kind, "metric": "m", "role": "context"} | fields
    return PrincipleClaim.model_validate(given)


def finding_of(claim: PrincipleClaim, word: str) -> EntryFinding:
    return EntryFinding(claim, ClaimVerdict(None, word, ""))


def runs(*values: float) -> tuple[RunSummary, ...]:
    return tuple(run_of(m=value) for value in values)


RUNS = {
    "base": runs(100, 110, 120),
    "a": runs(50, 60, 70),
    "b": runs(90, 95, 100),
    "both": runs(20, 30, 40),
    "failed": (run_of(m=1.0), run_of("LIVELOCK"), run_of("LIVELOCK")),
}


@pytest.mark.parametrize(
    ("claim", "value", "per_seed"),
    [
        (claim_of("value", of="a"), 60, (50, 60, 70)),
        (claim_of("ratio", of="a", to="base"), 180 / 330, (50 / 100, 60 / 110, 70 / 120)),
        (claim_of("interaction", of=["base", "a", "b", "both"]), -15, (-20, -15, -10)),
        (
            claim_of("gain_change", of=["a", "base"], to=["b", "base"]),
            100 * (285 - 180) / 330,
            (40, 100 * 35 / 110, 25),
        ),
        (claim_of("best_ratio", of="b", to=["base", "a"]), 285 / 180, (90 / 50, 95 / 60, 100 / 70)),
        (
            claim_of("change_share", of=["b", "base"], to=["a", "base"]),
            (285 / 330 - 1) / (180 / 330 - 1),
            (0.2, 15 / 50, 20 / 50),
        ),
        (claim_of("least_regret", of=[["base", "a"], ["b", "both"]]), 0.0, ()),
        (claim_of("least_regret", of=[["base", "a"], ["both", "b"]]), 100 * (330 / 180 - 1), ()),
        (claim_of("ended", of="failed"), 1 / 3, (1, 0, 0)),
    ],
)
def test_kinds_by_hand(claim: PrincipleClaim, value: float, per_seed: tuple[float, ...]) -> None:
    found = compute(Bound(claim, RUNS))
    assert found.mean.mean == pytest.approx(value)
    assert found.per_seed == pytest.approx(per_seed)
    if claim.kind == "ratio":
        assert found.mean.low < found.mean.mean < found.mean.high


def test_rank_changes_and_differing_requests() -> None:
    arms = {
        "one": (run_of(ttft_p99_ms=10.0, goodput_share=0.9),),
        "two": (run_of(ttft_p99_ms=20.0, goodput_share=0.8),),
        "three": (run_of(ttft_p99_ms=5.0, goodput_share=0.1),),
    }
    options = {"metrics": ["ttft_p99_ms", "goodput_share"]}
    claim = claim_of("rank_changes", of=["one", "two", "three"], options=options)
    assert compute(Bound(claim, arms)).mean.mean == 2
    assert compute(Bound(claim.model_copy(update={"of": ["one", "two"]}), arms)).mean.mean == 0
    first = np.arange(12).reshape(4, 3)
    second = first.copy()
    second[2, 1] = -1
    pair = {"x": (run_of(requests=first),), "y": (run_of(requests=second),)}
    assert compute(Bound(claim_of("differing", of="x", to="y"), pair)).mean.mean == 0.25
    assert compute(Bound(claim_of("differing", of="x", to="x"), pair)).mean.mean == 0


def test_runs_that_did_not_end_leave_no_figure() -> None:
    found = compute(Bound(claim_of("ratio", of="failed", to="base"), RUNS))
    assert math.isnan(found.mean.mean) and found.failure == "failed did not end (2 × LIVELOCK)"
    regret = claim_of("least_regret", of=[["failed", "a"], ["a", "b"]])
    assert compute(Bound(regret, RUNS)).mean.mean == pytest.approx(100 * (285 / 180 - 1))


def test_a_seed_without_the_figure_counts(tiny: Catalogue, lab: Lab) -> None:
    arms = {"base": (*runs(1, 2), run_of())}
    found = compute(Bound(claim_of("value", of="base"), arms))
    assert math.isnan(found.mean.mean) and found.failure == "there is no figure on 1 of 3 seeds"


def test_information_of_labels() -> None:
    classes = np.repeat([0, 1, 2], 40)
    assert information(classes, classes + 5)[0] == pytest.approx(np.log2(3))
    assert information(classes, np.tile(np.arange(40), 3))[0] == pytest.approx(0.0, abs=1e-9)


# --- verdicts -------------------------------------------------------------------------------------


@functools.lru_cache
def whole_catalogue() -> Catalogue:
    return load_catalogue()


def entry_of(**fields: Any) -> Entry:
    given = whole_catalogue().entries["RP-9"].model_dump(by_alias=True)
    return Entry.model_validate(given | fields)


@pytest.mark.parametrize(
    ("states", "verdict"),
    [
        ({"core": "met"}, HOLDS),
        ({"core": "met", "scope": "met", "control": "met"}, HOLDS),
        ({"core": "met", "scope": "not met"}, NARROWER),
        ({"core": "between"}, NARROWER),
        ({"core": "falsified", "scope": "met"}, NOT_SUPPORTED),
        ({"core": "not run"}, UNTESTED),
        ({"core": "met", "control": "not met"}, UNTESTED),
        ({"scope": "met"}, UNTESTED),
        ({"core": "met", "context": "not met"}, HOLDS),
    ],
)
def test_one_word_for_all_claims(states: dict[str, str], verdict: str) -> None:
    findings = [
        finding_of(claim_of("value", role=role, expected={"max": 1}), state)
        for role, state in states.items()
    ]
    assert verdict_of(entry_of(), findings) == verdict
    more = [
        *findings,
        finding_of(claim_of("value", role="core", expected={"max": 1}), "falsified"),
    ]
    assert verdict_of(entry_of(), more) == NOT_SUPPORTED


def test_advice_on_method_stays_advice_unless_refuted() -> None:
    core = claim_of("value", role="core", expected={"max": 1})
    assert verdict_of(entry_of(verdict="process"), [finding_of(core, "met")]) == "process"
    assert verdict_of(entry_of(verdict="process"), [finding_of(core, FALSIFIED)]) == NOT_SUPPORTED


def test_ranges() -> None:
    region = Range(min=1, below=2).claim
    assert region.holds(1) and not region.holds(2) and region.holds(math.nextafter(2, 1))
    assert not Range(max=2).claim.holds(math.nan) and not Range(above=0).claim.holds(0)
    assert Range(above=0, max=2).words() == "at most 2 and above 0"


def test_a_check_says_what_it_found(tiny: Catalogue, lab: Lab) -> None:
    verdict = check(tiny, tiny.entries["T-1"], lab, (42, 43, 44))
    assert verdict.verdict == HOLDS and verdict.agrees
    differing, completed, control = verdict.findings
    assert differing.verdict.reading is not None and differing.verdict.reading.mean.mean == 0
    assert completed.verdict.num_holding == 3 and control.verdict.reading is not None
    assert control.verdict.reading.mean.mean > 1.05
    assert "expected above 1: met, 3 of 3 seeds" in words_of(control)
    figures = verdict.arms["a"]["figures"]
    assert figures["rejected_share[standard]"] == [0, 0, 0]
    pooled, by_run = figures["pooled_ttft_p99_ms"], figures["ttft_p99_ms"]
    assert len(pooled) == 3 and min(by_run) <= sum(pooled) / 3 <= max(by_run) * 1.05
    assert set(verdict.arms["a"]["outcomes"]) == {"COMPLETED"}


def test_a_false_claim_is_refuted_and_a_vacuous_one_untested(tiny: Catalogue, lab: Lab) -> None:
    entry = tiny.entries["T-1"]
    wrong = TINY.replace("of: b, to: a, expected", "of: slow, to: a, expected")
    refuted = parse_catalogue({"tiny.yaml": wrong})
    assert check(refuted, refuted.entries["T-1"], lab, entry.seeds).verdict == NOT_SUPPORTED
    vacuous = parse_catalogue(
        {"tiny.yaml": TINY.replace("kind: ratio, of: slow", "kind: ratio, of: b")}
    )
    assert check(vacuous, vacuous.entries["T-1"], lab, entry.seeds).verdict == UNTESTED


@scorer()
def two_halves(params: Any, state: Any, context: GatewayContext) -> Any:
    """The load, again."""
    from blis_jax.policies.scorers import queue_depth

    return queue_depth.decide(params, state, context)


def test_a_policy_that_is_registered_later_is_run(
    tiny: Catalogue, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = tiny.entries["T-2"]
    before = check(tiny, entry, lab, entry.seeds)
    assert before.verdict == UNTESTED
    assert "scorer 'two-halves' is not registered" in before.findings[0].verdict.reason
    assert "figures" not in before.arms["a"]  # nothing is run in vain
    from blis_jax.policies import scorers

    monkeypatch.setattr(scorers, "two_halves", two_halves, raising=False)
    monkeypatch.setitem(registry.SCORERS, "two-halves", "scorers.two_halves")
    after = check(tiny, entry, lab, entry.seeds)
    assert after.verdict == HOLDS and not after.agrees


# --- probes ---------------------------------------------------------------------------------------


def test_affinity_sticks_exactly_where_the_inequality_says(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs, shares = [[2, 2], [4, 3], [3, 2], [2, 1]], [0.5, 0.75]
    violations, parts = probes.affinity_thresholds(pairs, shares)
    assert violations == 0 and parts["cascading"] == 1 and parts["without influence"] == 1
    usual = probes.scores_of
    monkeypatch.setattr(probes, "scores_of", lambda *given: -usual(*given))
    assert probes.affinity_thresholds(pairs, shares)[0] > 0


def test_overtaking_at_gap_over_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    assert probes.overtaking_order({"slo_age_weight": 2e-5})[0] == 0
    usual = probes._sheddable_first

    def late(config: Any, one: int, other: int) -> bool:
        return usual(config, one, other - 5000)

    monkeypatch.setattr(probes, "_sheddable_first", late)
    assert probes.overtaking_order({"slo_age_weight": 2e-5})[0] > 0


def test_regret_ties_and_algebra() -> None:
    default = "prefix-affinity:3,queue-depth:2,kv-utilization:2"
    assert probes.argmax_regret(default, num=200)[0] == 0
    assert probes.equal_loads("least-loaded", (2, 5))[0] == 0
    assert probes.affinity_algebra(default, "queue-depth:2,kv-utilization:2", num=200)[0] == 0
    assert probes.affinity_algebra(default, "queue-depth:2,kv-utilization:20", num=200)[0] > 0


def test_shared_part_of_prompts() -> None:
    _, parts = probes.match_ratios("orth")
    assert parts["r_min"] == pytest.approx(0.5) and parts["r_max"] == pytest.approx(512 / 576)


def test_searches_with_few_and_with_many_parameters(tmp_path: Path) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY_STRATEGY)
    names = ["max_num_scheduled_tokens", "slo_base_critical"]
    ratio, parts = probes.spread_ratio(str(path), names[:1], names, 3, 2, {"num_instances": 1})
    assert ratio == parts["spread with 2"] / parts["spread with 1"] > 0
    assert 0 < parts["mean with 1"] < 1e6  # no restart failed


# --- the command ----------------------------------------------------------------------------------


@pytest.fixture
def with_tiny(tiny: Catalogue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweeps.principles.command.load_catalogue", lambda: tiny)


def test_checks_are_written_and_not_made_again(
    with_tiny: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "found.json"
    assert command.main(["--output", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "2 checked: 1 holds, 1 untested." in shown and "All as in the catalogue." in shown
    assert shown.startswith("Asked: ") and " claims simulated." in shown
    assert "each claim on 3 seeds; 1 claim was not simulated" in " ".join(shown.split())
    assert "--explain tells how" in " ".join(shown.split())
    first = json.loads(path.read_text())
    one, other = first["principles"]
    assert_all_forms_agree(findings_of(first["principles"]))
    assert other["statement"] in text(findings_of(first["principles"]), has_all=True)
    assert one["claims"][0]["value"] == 0 and one["claims"][0]["per_seed"] == [0, 0, 0]
    assert other["claims"][0]["state"] == "not run" and other["agrees"]
    monkeypatch.setattr("sweeps.principles.command.check", pytest.fail)
    assert command.main(["--output", str(path), "--quiet"]) == 0
    assert json.loads(path.read_text()) == first


def test_a_stopped_command_goes_on(
    with_tiny: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, made = tmp_path / "found.json", []

    def stopped(catalogue: Any, entry: Entry, *given: Any) -> Any:
        made.append(entry.id)
        if len(made) == 2:
            raise KeyboardInterrupt
        return check(catalogue, entry, *given)

    monkeypatch.setattr("sweeps.principles.command.check", stopped)
    assert command.main(["--output", str(path), "--quiet"]) == 130
    assert not path.exists()
    with path.with_suffix(".jsonl").open("a") as file:
        file.write('{"identity": "cut o')
    assert command.main(["--output", str(path), "--quiet"]) == 0
    assert made == ["T-1", "T-2", "T-2"]
    assert len(json.loads(path.read_text())["principles"]) == 2


def test_other_seeds_code_or_entry_are_other_checks(tiny: Catalogue) -> None:
    entry = tiny.entries["T-1"]
    keys = {
        identity(tiny, entry, seeds, stream, False, code)
        for seeds in ((1, 2, 3), (1, 2, 4))
        for stream in ("reference", "jax")
        for code in ("x", "y")
    }
    changed = parse_catalogue({"tiny.yaml": TINY.replace("max: 0}, f", "max: 1}, f")})
    keys.add(identity(changed, changed.entries["T-1"], (1, 2, 3), "reference", False, "x"))
    worded = parse_catalogue({"tiny.yaml": TINY.replace("statement: tiny", "statement: small")})
    keys.add(identity(worded, worded.entries["T-1"], (1, 2, 3), "reference", False, "x"))
    assert len(keys) == 9


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--only", "T-9"], "'T-9' is no entry"),
        (["--seeds", "1,2"], "needs at least 3"),
        (["--seeds", "1,2,x"], "--seeds: '1,2,x' is neither a number of seeds nor a list"),
        (["--seeds", "1,1,2"], "given twice"),
        (["--num-seeds", "2"], "needs at least 3"),
        (["--num-seeds", "4", "--seeds", "1,2,3"], "give one of both"),
        (["--measure"], "--measure belongs to --strategy"),
        (["--output", "found.txt"], "must end in .json"),
        (["--rng", "go"], "--rng"),
    ],
)
def test_refusals_write_nothing(
    with_tiny: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    problem: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command.main(words) == 2
    said = capsys.readouterr().err
    assert problem in said and said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_foreign_files_are_kept(
    with_tiny: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.json"
    path.write_text("{}")
    assert command.main(["--output", str(path)]) == 2
    assert "is not a result of this command" in capsys.readouterr().err
    record = PrinciplesRecord(tmp_path / "mine.jsonl")
    record.path.write_text('{"search": 1}\n')
    with pytest.raises(ConfigError, match=r"not a record of this work \(check of principles\)"):
        record.lines()


def test_listing(with_tiny: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:2] == ["T-2", "untested"]

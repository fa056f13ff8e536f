"""Judges on made-up and tiny cases with twins, imported verdicts, consensus, and the command."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import yaml

from blis_jax.cluster.config import ClusterConfig
from blis_jax.core.outcome import Outcome
from blis_jax.errors import ConfigError
from blis_jax.metrics.run_summary import RunSummary
from blis_jax.policies import priority_policy, queue_order, registry, scorer
from blis_jax.policies import scorers as scorers_module
from blis_jax.policies.contexts import GatewayContext, QueueContext
from blis_jax.policies.contract import Policy
from blis_jax.runs.many_runs import simulate
from blis_jax.workload.reference import draw
from sweeps.claims.words import CONCERN, PASS, REJECT
from sweeps.review import classes, routing
from sweeps.review.__main__ import main
from sweeps.review.candidates import Candidate, Exhibit, Opinion, candidates_of
from sweeps.review.consensus import check_record, consensus, read_reviews, write_template
from sweeps.review.judges import JUDGES, exhibit_of, judges_named
from sweeps.review.routing import RunDecisions, decisions_of
from tests.sweeps.tiny import TINY

SEEDS = (42, 43)
BASELINE = "iter00_baseline"


def candidate_of(text: str) -> Candidate:
    first, _ = candidates_of([text, f"other={BASELINE}:max_num_running_reqs=255"])
    return first


def exhibit(
    candidate: Candidate, runs: Any = None, decisions: RunDecisions | None = None
) -> Exhibit:
    return Exhibit(candidate, SEEDS, runs or {}, decisions)


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "one.yaml").write_text(TINY)
    other = TINY.replace("name: tiny", "name: other").replace(
        "scheduler: priority-fcfs", "scheduler: sjf"
    )
    (tmp_path / "two.yaml").write_text(other)
    return f"one={tmp_path / 'one.yaml'}", f"two={tmp_path / 'two.yaml'}"


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Adds a policy under a name for the time of a test."""
    modules = {
        "scorer": (scorers_module, "scorers"),
        "priority": (queue_order, "queue_order"),
    }

    def add(name: str, policy: Policy) -> None:
        module, module_name = modules[policy.kind]
        function_name = name.replace("-", "_")
        monkeypatch.setattr(module, function_name, policy, raising=False)
        where = f"{module_name}.{function_name}"
        monkeypatch.setitem(registry.NAMES[policy.kind], name, where)

    return add


# --- candidates -----------------------------------------------------------------------------------


def test_hashes_follow_the_content_and_not_the_layout(
    files: tuple[str, str], tmp_path: Path
) -> None:
    before = [candidate.hash for candidate in candidates_of(list(files))]
    path = tmp_path / "one.yaml"
    path.write_text("# a remark\n" + TINY.replace("name: tiny", "name:   'tiny'"))
    assert [candidate.hash for candidate in candidates_of(list(files))] == before
    for change in (
        ("[5, 20]", "[5, 21]"),
        ("num_requests: 40", "num_requests: 41"),
        ("two small", "2"),
    ):
        path.write_text(TINY.replace(*change))
        assert candidates_of(list(files))[0].hash != before[0], change


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        ([BASELINE], "got 1; give"),
        ([BASELINE, "iter05_simplified", "iter04_slo_prefill", "iter06_sjf"], "got 4; give"),
        ([BASELINE, f"again={BASELINE}"], "given twice"),
    ],
)
def test_two_or_three_different_candidates(texts: list[str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        candidates_of(texts)


# --- signals --------------------------------------------------------------------------------------


def decisions_with(**scores: np.ndarray) -> RunDecisions:
    values = np.array(list(scores.values()))
    names = tuple(name.replace("_", "-") for name in scores)
    loads = np.arange(values[0].size).reshape(values[0].shape) % 7
    weights = np.full(len(names), 1 / len(names))
    return RunDecisions(names, weights, values, loads, np.zeros_like(loads))


def signal_of(decisions: RunDecisions, share_without: float = 0.5) -> Opinion:
    """The judge's opinion when every run without a scorer differs in this share of the requests."""
    text = ",".join(f"{name}:1" for name in decisions.names)
    candidate = candidate_of(f"{BASELINE}:routing_scorers={text}")
    one = np.zeros((4, 2), int)
    other = one.copy()
    other[: int(4 * share_without)] = 1
    configs = JUDGES["signal"].configs(candidate)
    runs = {
        config: (RunSummary(Outcome.COMPLETED, {}, lives=other),) * 2 for config in configs.values()
    }
    runs[candidate.config] = (RunSummary(Outcome.COMPLETED, {}, lives=one),) * 2
    return JUDGES["signal"].judge(exhibit(candidate, runs, decisions))


VARIED = np.random.default_rng(5).random((2, 60, 4))


def test_a_scorer_that_is_the_same_for_all_instances_is_rejected() -> None:
    flat = np.tile(VARIED[0, :, :1], 4)  # it differs from request to request only
    opinion = signal_of(decisions_with(queue_depth=VARIED[0], prefix_affinity=flat))
    assert opinion.verdict == REJECT and "gives all instances one value" in opinion.reasons[0]
    twin = signal_of(decisions_with(queue_depth=VARIED[0], prefix_affinity=VARIED[1]))
    assert twin.verdict == PASS


def test_a_scorer_that_changes_nothing_is_rejected() -> None:
    decisions = decisions_with(queue_depth=VARIED[0], prefix_affinity=VARIED[1])
    assert signal_of(decisions, 0.0).verdict == REJECT
    assert signal_of(decisions, 0.25).verdict == PASS


def test_two_scorers_of_one_order_are_one_signal() -> None:
    opinion = signal_of(decisions_with(queue_depth=VARIED[0], load_balance=VARIED[0] ** 3))
    assert opinion.verdict == CONCERN
    assert "queue-depth and load-balance order the instances alike" in opinion.reasons[-1]


def test_free_memory_is_not_affinity() -> None:
    opinion = signal_of(decisions_with(queue_depth=VARIED[0], kv_utilization=1 - 0.001 * VARIED[1]))
    assert opinion.verdict == CONCERN and "not what is cached" in opinion.reasons[0]
    figures = opinion.evidence["kv-utilization"]
    assert figures["mean difference between best and worst"] < 0.001
    wide = signal_of(decisions_with(queue_depth=VARIED[0], kv_utilization=VARIED[1]))
    assert wide.verdict == PASS


@pytest.mark.slow
def test_decisions_are_those_of_the_run(register: Callable[..., None]) -> None:
    register("urgency", service_time)
    spec = candidates_of([BASELINE, "idea2_deadlines"], 60)[0].spec
    table, _ = draw(spec, 42, 16)
    config = ClusterConfig(
        num_instances=3,
        routing_policy="weighted",
        routing_scorers="queue-depth:2,urgency:1,prefix-affinity:1",
    )
    found = decisions_of(config, table, 42)
    record = simulate(config, table, seed=42)
    assert found is not None and found.scores.shape[1] == 60
    order = np.argsort(table.tie_rank)
    np.testing.assert_array_equal(found.total().argmax(axis=1), record.requests.instance[order])
    assert found.is_flat("urgency").all() and not found.is_flat("queue-depth").all()
    assert found.decides("urgency") == 0 and found.decides("queue-depth") > 0.1
    assert found.agreement("queue-depth", -found.loads.astype(float)) == 1
    assert decisions_of(config.replace(routing_policy="round-robin"), table, 42) is None


@pytest.mark.slow
def test_what_is_cached_is_seen_where_no_scorer_reads_it() -> None:
    table, _ = draw(candidates_of([BASELINE, "idea2_deadlines"], 20)[0].spec, 42, 16)
    by_load = {"routing_policy": "weighted", "routing_scorers": "load-balance:1"}
    found = decisions_of(ClusterConfig(num_instances=2, **by_load), table, 42)
    assert found is not None and found.matched.any()


@scorer()
def service_time(params: Any, state: Any, context: GatewayContext) -> Any:
    """A predicted service time that knows the class, and so is the same on every instance."""
    by_class = jnp.asarray([0.5, 0.9, 0.5, 0.1, 0.1, 0.1])[context.request.slo_class]
    return jnp.full(context.snapshots.effective_load.shape, 1.0) * by_class, state


# --- herds ----------------------------------------------------------------------------------------


def herd(own: dict[str, float], stale: dict[str, float] | None = None) -> str:
    calm = {
        "same_instance_rate": 0.1,
        "load_swing": 0.4,
        "busiest_share": 1.05,
        "ttft_p99_ms": 100.0,
    }
    candidate = candidate_of(BASELINE)
    configs = JUDGES["oscillation"].configs(candidate)
    runs = {config: (RunSummary(Outcome.COMPLETED, calm),) for config in configs.values()}
    runs[configs[routing.STALE]] = (RunSummary(Outcome.COMPLETED, calm | (stale or {})),)
    if own:
        # the candidate's own snapshots are fresh, so its figures are those of both
        runs[candidate.config] = (RunSummary(Outcome.COMPLETED, calm | own),)
    return JUDGES["oscillation"].judge(Exhibit(candidate, (42,), runs)).verdict


def test_runs_that_do_not_end_are_no_proof_of_calm() -> None:
    candidate = candidate_of(BASELINE)
    runs = {
        c: (RunSummary(Outcome.LIVELOCK, {}),)
        for c in JUDGES["oscillation"].configs(candidate).values()
    }
    runs[candidate.config] = (RunSummary(Outcome.LIVELOCK, {}),)
    opinion = JUDGES["oscillation"].judge(Exhibit(candidate, (42,), runs))
    assert opinion.verdict == CONCERN and "ended with LIVELOCK" in opinion.reasons[0]


def test_own_snapshots_that_are_too_old() -> None:
    candidate = candidate_of(f"{BASELINE}:snapshot_refresh_interval=20000")
    calm = {"same_instance_rate": 0.1, "load_swing": 0.4, "busiest_share": 1.0, "ttft_p99_ms": 90.0}
    runs = {
        config: (RunSummary(Outcome.COMPLETED, calm),)
        for config in JUDGES["oscillation"].configs(candidate).values()
    }
    for swing, verdict in ((0.9, REJECT), (0.41, PASS)):
        own = calm | {"load_swing": swing, "ttft_p99_ms": 200.0 * swing}
        runs[candidate.config] = (RunSummary(Outcome.COMPLETED, own),)
        assert JUDGES["oscillation"].judge(Exhibit(candidate, (42,), runs)).verdict == verdict


@pytest.mark.parametrize(
    ("own", "stale", "verdict"),
    [
        ({}, {}, PASS),
        ({"busiest_share": 8.0}, {}, REJECT),
        ({"same_instance_rate": 0.9, "ttft_p99_ms": 250.0}, {}, REJECT),
        ({"same_instance_rate": 0.9, "ttft_p99_ms": 110.0}, {}, CONCERN),
        ({}, {"load_swing": 0.9, "ttft_p99_ms": 200.0}, CONCERN),
        ({}, {"load_swing": 0.9}, PASS),
    ],
)
def test_herds(own: dict[str, float], stale: dict[str, float], verdict: str) -> None:
    assert herd(own, stale) == verdict


# --- numbers --------------------------------------------------------------------------------------


def _age_us(context: QueueContext) -> Any:
    return (context.now_us - context.request.arrival_us).astype(jnp.float64)


@priority_policy()
def hyperbolic(params: Any, state: Any, context: QueueContext) -> Any:
    """Urgency as one over the time left, in ms, to a budget of 100 ms or 1 s: a pole at each."""
    budget_us = jnp.where(context.request.slo_class == 1, 100_000.0, 1_000_000.0)
    left_us = budget_us - _age_us(context)
    left_us = jnp.where(left_us == 0, 1.0, left_us)
    return 1000.0 / left_us, state


@priority_policy()
def bounded(params: Any, state: Any, context: QueueContext) -> Any:
    """The same aims without a pole: base by class and a line."""
    base = jnp.where(context.request.slo_class == 1, 1.0, 0.0)
    return base + 1e-5 * _age_us(context), state


@priority_policy()
def falling(params: Any, state: Any, context: QueueContext) -> Any:
    """Younger first."""
    return -1e-6 * _age_us(context), state


def stability_of(**changes: Any) -> Opinion:
    arm = ";".join(f"{name}={value}" for name, value in changes.items())
    return JUDGES["stability"].judge(exhibit(candidate_of(f"{BASELINE}:{arm}")))


def test_a_pole_at_the_deadline_is_rejected(register: Callable[..., None]) -> None:
    register("hyperbolic", hyperbolic)
    register("bounded", bounded)
    register("falling", falling)
    opinion = stability_of(priority_policy="hyperbolic", scheduler="priority-fcfs")
    assert opinion.verdict == REJECT and "the order there is an accident" in opinion.reasons[0]
    where = opinion.evidence["at age, µs"]
    assert min(abs(where - 100_000), abs(where - 1_000_000)) <= 1
    twin = stability_of(priority_policy="bounded", scheduler="priority-fcfs")
    assert twin.verdict == PASS
    assert twin.evidence["steepest change in 1 µs"] == pytest.approx(1e-5)
    assert stability_of(priority_policy="falling", scheduler="priority-fcfs").verdict == REJECT


def test_overflow_is_rejected() -> None:
    assert stability_of(priority_policy="slo-tiered", slo_age_weight=1e305).verdict == REJECT
    assert stability_of(priority_policy="slo-tiered", slo_age_weight=1e-4).verdict == PASS
    assert stability_of(priority_policy="constant").verdict == PASS


def test_scorers_at_extremes(register: Callable[..., None]) -> None:
    register("hollow", hollow)
    register("wide", wide)
    reject = stability_of(routing_scorers="queue-depth:1,hollow:1")
    assert reject.verdict == REJECT and "infinite or NaN" in reject.reasons[0]
    concern = stability_of(routing_scorers="queue-depth:1,wide:1")
    assert concern.verdict == CONCERN and "is cut off" in concern.reasons[0]
    every = ",".join(f"{name}:1" for name in ("prefix-affinity", "queue-depth", "kv-utilization"))
    assert stability_of(routing_scorers=f"{every},load-balance:1,slo-priority:1").verdict == PASS


@scorer()
def hollow(params: Any, state: Any, context: GatewayContext) -> Any:
    """Infinite on an idle instance."""
    return 1 / context.snapshots.effective_load.astype(jnp.float64), state


@scorer()
def wide(params: Any, state: Any, context: GatewayContext) -> Any:
    """Up to 2."""
    return 2 / (1 + context.snapshots.effective_load.astype(jnp.float64)), state


def test_decisions_within_rounding() -> None:
    apart = np.tile([0.5, 0.1, 0.2, 0.3], (50, 1))
    near = np.tile([0.5, 0.5 - 1e-16, 0.2, 0.3], (50, 1))
    candidate = candidate_of(f"{BASELINE}:routing_scorers=queue-depth:1")
    for scores, verdict in ((apart, PASS), (near, CONCERN)):
        decisions = decisions_with(queue_depth=scores)
        assert JUDGES["stability"].judge(exhibit(candidate, None, decisions)).verdict == verdict


# --- lengths --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        (f"{BASELINE}:scheduler=sjf", PASS),
        ("iter07_nonorthogonal", CONCERN),
        ("iter07_nonorthogonal:scheduler=sjf", REJECT),
    ],
)
def test_lengths_that_stand_in_for_the_class(text: str, verdict: str) -> None:
    opinion = JUDGES["proxy"].judge(exhibit(candidate_of(text)))
    assert opinion.verdict == verdict
    chance = opinion.evidence["chance"]
    accuracy = opinion.evidence["balanced accuracy from the prompt"]
    assert chance == pytest.approx(1 / 3)
    assert (accuracy > 0.6) == (verdict != PASS)
    if verdict == PASS:
        assert abs(accuracy - chance) < 0.08
        assert opinion.evidence["Kolmogorov-Smirnov, prompt"]["critical/standard, p"] > 0.01


def test_one_class_cannot_be_told_apart() -> None:
    candidate = candidate_of(BASELINE)
    spec = candidate.spec.model_copy(update={"clients": candidate.spec.clients[:1]})
    opinion = JUDGES["proxy"].judge(exhibit(dataclasses.replace(candidate, spec=spec)))
    assert opinion.verdict == PASS and not opinion.evidence


# --- starvation, inert mechanisms, bounds ---------------------------------------------------------


def starved(text: str, outcome: str = "COMPLETED", **own: float) -> Opinion:
    candidate = candidate_of(text)
    usual = {}
    for slo_class in candidate.classes:
        usual[f"completion_rate[{slo_class}]"] = 1.0
        usual[f"rejected_share[{slo_class}]"] = 0.0
        usual[f"ttft_p99_ms[{slo_class}]"] = 100.0
    mine = usual | {f"{name}[sheddable]": value for name, value in own.items()}
    base = JUDGES["starvation"].configs(candidate)[classes.BASELINE]
    runs = {
        base: (RunSummary(Outcome.COMPLETED, usual),),
        candidate.config: (RunSummary(Outcome[outcome], mine if outcome == "COMPLETED" else {}),),
    }
    return JUDGES["starvation"].judge(Exhibit(candidate, (42,), runs))


TIERS = "priority_policy=slo-tiered;scheduler=priority-fcfs"


@pytest.mark.parametrize(
    ("opinion", "verdict"),
    [
        (lambda: starved(f"{BASELINE}:{TIERS}"), PASS),
        (lambda: starved(f"{BASELINE}:{TIERS}", ttft_p99_ms=250.0), CONCERN),
        (lambda: starved(f"{BASELINE}:{TIERS}", completion_rate=0.2), REJECT),
        (lambda: starved(f"{BASELINE}:{TIERS}", completion_rate=0.4, rejected_share=0.6), CONCERN),
        (lambda: starved(f"{BASELINE}:{TIERS}", completion_rate=0.01, rejected_share=0.99), REJECT),
        (lambda: starved(f"{BASELINE}:{TIERS};slo_age_weight=1e-6"), CONCERN),
        (lambda: starved(f"{BASELINE}:{TIERS};slo_age_weight=0"), REJECT),
        (lambda: starved(f"{BASELINE}:{TIERS}", "LIVELOCK"), REJECT),
    ],
)
def test_starvation(opinion: Callable[[], Opinion], verdict: str) -> None:
    assert opinion().verdict == verdict


def test_time_until_an_old_request_passes() -> None:
    config = candidate_of(f"{BASELINE}:{TIERS}").config
    assert classes.crossover_s(config) == pytest.approx(1.1)
    assert classes.crossover_s(config.replace(scheduler="fcfs")) is None
    assert classes.crossover_s(config.replace(slo_base_sheddable=11.0)) == 0
    assert math.isinf(classes.crossover_s(config.replace(slo_age_weight=0.0)) or 0)
    by_class = config.replace(priority_policy="slo-class")
    assert classes.crossover_s(by_class) == pytest.approx(0.7)


def test_mechanisms_that_do_nothing_are_named() -> None:
    candidate = candidate_of(f"{BASELINE}:slo_priority_bridge=true")
    mine, other = np.zeros((4, 2), int), np.ones((4, 2), int)

    def opinion(same: set[str]) -> Opinion:
        runs = {
            config: (RunSummary(Outcome.COMPLETED, {}, lives=mine if name in same else other),) * 2
            for name, config in JUDGES["inert"].configs(candidate).items()
        }
        runs[candidate.config] = (RunSummary(Outcome.COMPLETED, {}, lives=mine),) * 2
        return JUDGES["inert"].judge(exhibit(candidate, runs))

    assert opinion(set()).verdict == PASS
    found = opinion({"kv_cpu_blocks"})
    assert found.verdict == CONCERN and "which the strategy requires" in found.reasons[0]
    assert opinion({classes.BASELINE, "slo_priority_bridge"}).verdict == REJECT


def test_parameters_at_the_ends_of_their_ranges() -> None:
    ends = JUDGES["bounds"].judge(exhibit(candidate_of("iter08_token_budget@published")))
    assert ends.verdict == CONCERN
    assert [reason.split()[0] for reason in ends.reasons] == [
        "age_weight",
        "threshold_sheddable",
        "prefill_crit",
    ]
    inner = (
        "iter08_token_budget@published:age_weight=2e-5;threshold_sheddable=200000;prefill_crit=200"
    )
    assert JUDGES["bounds"].judge(exhibit(candidate_of(inner))).verdict == PASS
    outside = JUDGES["bounds"].judge(exhibit(candidate_of("idea2_deadlines")))
    assert "lies outside of its range" in outside.reasons[0]


# --- imported verdicts and consensus --------------------------------------------------------------


@pytest.fixture
def pair(files: tuple[str, str]) -> tuple[Candidate, ...]:
    return candidates_of(list(files))


def review_file(path: Path, pair: tuple[Candidate, ...], **changes: Any) -> Path:
    write_template(path, pair)
    document = yaml.safe_load(path.read_text())
    document["judge"] = "ada"
    for verdict in document["verdicts"]:
        verdict |= {"verdict": "concern", "reasons": ["too many numbers"]}
    document["verdicts"][0] |= changes
    path.write_text(json.dumps(document) if path.suffix == ".json" else yaml.safe_dump(document))
    return path


@pytest.mark.parametrize("name", ["ada.yaml", "ada.json"])
def test_imported_verdicts(tmp_path: Path, pair: tuple[Candidate, ...], name: str) -> None:
    path = tmp_path / name
    if path.suffix == ".json":
        template = tmp_path / "template.yaml"
        write_template(template, pair)
    opinions = read_reviews([review_file(path, pair)], pair, ["signal"])
    assert [(one.judge, one.candidate, one.verdict) for one in opinions] == [
        ("ada", "one", CONCERN),
        ("ada", "two", CONCERN),
    ]
    assert not opinions[0].is_reproducible


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"hash": "sha256:" + "0" * 64}, "is about another version.*have it reviewed again"),
        ({"verdict": None}, "is not filled in; write pass, concern or reject"),
        ({"verdict": "maybe"}, "verdicts.0..verdict"),
        ({"reasons": []}, "is concern without a reason"),
        ({"candidate": "ones"}, "did you mean 'one'"),
        ({"candidate": "two"}, "is about another version|has no verdict|two verdicts"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_verdicts_that_do_not_fit_are_refused(
    tmp_path: Path, pair: tuple[Candidate, ...], changes: dict[str, Any], problem: str
) -> None:
    path = review_file(tmp_path / "ada.yaml", pair, **changes)
    with pytest.raises(ConfigError, match=problem):
        read_reviews([path], pair, [])


def test_a_judge_has_one_name_and_one_verdict_each(
    tmp_path: Path, pair: tuple[Candidate, ...]
) -> None:
    path = review_file(tmp_path / "ada.yaml", pair)
    with pytest.raises(ConfigError, match="another judge's name"):
        read_reviews([path, path], pair, [])
    document = yaml.safe_load(path.read_text())
    document["verdicts"] = document["verdicts"][:1]
    path.write_text(yaml.safe_dump(document))
    with pytest.raises(ConfigError, match="'two' has no verdict"):
        read_reviews([path], pair, [])


def opinions_of(*rows: tuple[str, str, str, bool]) -> list[dict[str, Any]]:
    keys = ("judge", "candidate", "verdict", "is_reproducible")
    return [dict(zip(keys, row, strict=True)) for row in rows]


def test_consensus_and_dissent() -> None:
    opinions = opinions_of(
        ("signal", "a", PASS, True),
        ("signal", "b", CONCERN, True),
        ("signal", "c", REJECT, True),
        ("ada", "a", REJECT, False),
        ("ada", "b", PASS, False),
        ("ada", "c", PASS, False),
        ("bob", "a", PASS, False),
        ("bob", "b", PASS, False),
        ("bob", "c", PASS, False),
    )
    found = consensus({"a": None, "b": None, "c": None}, opinions)
    outcomes = {name: entry["outcome"] for name, entry in found["outcomes"].items()}
    # one imported rejection of three is no majority; a probe that can be repeated is enough
    assert outcomes == {"a": "accepted", "b": "accepted", "c": "rejected"}
    assert found["outcomes"]["a"]["dissent"] == ["ada"]
    assert found["outcomes"]["c"]["dissent"] == ["ada", "bob"]
    assert found["chosen"] == "b"  # no rejection, one concern
    more = [*opinions, *opinions_of(("cyd", "a", REJECT, False), ("dot", "a", REJECT, False))]
    assert consensus({"a": None}, more)["outcomes"]["a"]["outcome"] == "rejected"
    assert consensus({"a": None}, more)["chosen"] is None


def test_of_equals_the_lower_score_is_chosen() -> None:
    opinions = opinions_of(("signal", "a", PASS, True), ("signal", "b", PASS, True))
    assert consensus({"a": 2.0, "b": 1.0}, opinions)["chosen"] == "b"
    assert consensus({"a": None, "b": 1.0}, opinions)["chosen"] == "b"
    assert consensus({"a": None, "b": None}, opinions)["chosen"] == "a"


# --- the command ----------------------------------------------------------------------------------


def test_review_record_and_check(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, template = tmp_path / "review.json", tmp_path / "ada.yaml"
    assert main([*files, "--template", str(template)]) == 0
    document = yaml.safe_load(template.read_text())
    document["judge"] = "ada"
    for verdict in document["verdicts"]:
        verdict["verdict"] = "pass"
    template.write_text(yaml.safe_dump(document))
    words = [*files, "--judges", "bounds,proxy", "--external", str(template)]
    assert main([*words, "--output", str(output)]) == 0
    shown = capsys.readouterr().out
    assert "ada: pass; " in shown and "Chosen: one." in shown
    record = json.loads(output.read_text())
    assert len(record["opinions"]) == 2 * 3
    assert "--judges proxy --rng reference --seeds 42,43" in record["opinions"][0]["repeat"]
    assert record["candidates"][0]["score"] is not None
    two = [o for o in record["opinions"] if o["candidate"] == "two" and o["judge"] == "proxy"]
    assert two[0]["verdict"] == REJECT  # prompts of 200 and 300 tokens, and shortest first
    assert main(["--check", str(output)]) == 0
    assert "2 candidates are as they were reviewed" in capsys.readouterr().out
    assert main([*words, "--output", str(output)]) == 2
    assert "give --overwrite" in capsys.readouterr().err
    record["consensus"]["chosen"] = "two"
    (tmp_path / "forged.json").write_text(json.dumps(record))
    with pytest.raises(ConfigError, match="does not follow from the opinions"):
        check_record(tmp_path / "forged.json")
    path = tmp_path / "one.yaml"
    path.write_text(path.read_text().replace("[5, 20]", "[5, 30]"))
    assert main(["--check", str(output)]) == 2
    said = capsys.readouterr().err
    assert "'one' is no longer what was reviewed" in said and said.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "got 0; give"),
        (["--judges", "signl"], "did you mean 'signal'"),
        (["--external", "nobody.yaml"], "nobody.yaml does not exist"),
        (["--seeds", "1;2"], "nor a list of whole numbers"),
        (["--seeds", "1,1"], "given twice"),
        (["--num-requests", "0"], "allowed is 1 or more"),
        (["--output", "review.txt"], "must end in .json"),
        (["--template", "ada.json"], "must end in .yaml"),
        (["--check", "nowhere.json"], "nowhere.json does not exist"),
    ],
)
def test_refusals_write_nothing(
    files: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    problem: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    given = files if words and "--check" not in words else ()
    assert main([*given, *words]) == 2
    said = capsys.readouterr().err
    assert problem in said and said.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.yaml", "two.yaml"]


def test_judges_by_name() -> None:
    assert [judge.name for judge in judges_named("bounds,signal")] == ["signal", "bounds"]
    assert len(judges_named(None)) == len(JUDGES) == 7


# --- the second idea, as it was meant ------------------------------------------------------------

IDEA2 = """
name: idea2-as-meant
mechanism: {num_instances: 8, routing_policy: weighted,
            routing_scorers: "prefix-affinity:3,queue-depth:2,service-time:2",
            scheduler: priority-fcfs, priority_policy: POLICY, long_prefill_token_threshold: 256}
objectives: [{metric: "ttft_p99_ms[critical]"}]
"""


@pytest.mark.slow
def test_the_second_idea_fails_where_its_reviewers_said(
    register: Callable[..., None], tmp_path: Path
) -> None:
    """Hyperbolic urgency, and a scorer that predicts service times from the class alone."""
    register("hyperbolic", hyperbolic)
    register("bounded", bounded)
    register("service-time", service_time)
    texts = []
    for name in ("hyperbolic", "bounded"):
        path = tmp_path / f"{name}.yaml"
        text = IDEA2.replace("POLICY", name)
        if name == "bounded":
            text = text.replace(",service-time:2", "")
        path.write_text(text)
        texts.append(f"{name}={path}")
    candidates = candidates_of(texts, 300)
    judges = judges_named("signal,stability")
    verdicts = {}
    for candidate in candidates:
        shown = exhibit_of(candidate, judges, (42, 43, 44), "reference")
        verdicts[candidate.name] = {j.name: j.judge(shown) for j in judges}
    idea, twin = verdicts["hyperbolic"], verdicts["bounded"]
    assert idea["signal"].verdict == REJECT
    assert any("service-time" in reason for reason in idea["signal"].reasons)
    assert idea["stability"].verdict == REJECT
    assert twin["signal"].verdict != REJECT and twin["stability"].verdict == PASS

"""The plugins of a promotion: which there are, what they are called, and that two runs make the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from blis_jax.policies.numbers import numbers_of
from sweeps.promote import DEFAULT_TARGET
from sweeps.promote.golang import target as targets
from sweeps.promote.golang.plugins import (
    FOLDER,
    names_of,
    plugin_of,
    plugins_for,
    plugins_of,
    rules_of,
    shipped_rules,
)
from sweeps.promote.promotion import NotMappedError, Promotion
from sweeps.strategies.arms import arm_of
from tests.sweeps.promote.fakes import minimal_runner
from tests.sweeps.promote.golang import user_policies
from tests.sweeps.promote.golang.rules import rule, user_rule

pytestmark = pytest.mark.lenient_promotion


def promotion(given: str, target: str = DEFAULT_TARGET) -> Promotion:
    return Promotion(given, arm_of(given), arm_of("iter00_baseline"), target)


def test_a_strategy_brings_what_the_target_has_not() -> None:
    found = plugins_of(promotion("iter16_class_gate@found"))
    assert [(one.kind, one.type_name) for one in found.generated] == [
        ("admission", "class-gated-admitter"),
        ("scorer", "load-balance-scorer"),  # prefix-affinity is the target's own
        ("request", "engine-priority"),  # the order by class is the engine's
    ]
    gate = found.generated[0]
    assert gate.package_path == "pkg/epp/framework/plugins/requestcontrol/admitter/classgated"
    assert gate.parameters["standardLoad"] == 194.12259463255234
    readme = found.files[f"{FOLDER}/{gate.package_path}/README.md"]
    meaning = "share of the class that is shed then; between 0 and 1"
    assert f"| `probability` | {meaning} |" in readme
    assert gate.signals == ("request.slo_class", "snapshots.effective_load")
    assert gate.stability == "Alpha"
    package = f"{FOLDER}/{gate.package_path}"
    assert {path.removeprefix(f"{package}/") for path in found.files if path.startswith(package)} == {
        "README.md", "class_gated.go", "class_gated_test.go", "testdata/vectors.json",
    }  # fmt: skip
    assert f"{FOLDER}/registration.patch" in found.files
    assert all(text.endswith("\n") for text in found.files.values())
    assert dict(plugins_of(promotion("iter16_class_gate@found")).files) == dict(found.files)


def test_go_and_its_pages_have_the_target_s_signs_and_go_through_its_scheduler() -> None:
    files = plugins_of(promotion("iter16_class_gate@found")).files
    assert [path for path, text in files.items() if not text.isascii()] == []
    (test,) = (text for path, text in files.items() if path.endswith("load_balance_test.go"))
    assert "WithFilters(notFirst{})" in test and "maxscore.NewMaxScorePicker(1)" in test


def test_the_baseline_brings_no_scorer() -> None:
    kinds = [one.kind for one in rules_of(promotion("iter00_baseline"))]
    assert "scorer" in kinds
    assert all(one.kind == "order" for one in plugins_of(promotion("iter00_baseline")).generated)


def test_an_order_with_a_static_key_brings_no_order() -> None:
    found = plugins_of(promotion("iter02_load_adaptive")).generated
    assert [one.type_name for one in found if one.kind in ("order", "request")] == [
        "engine-priority"
    ]


def test_an_order_that_changes_with_time_is_refused() -> None:
    """The router's queue is a heap, which such an order would break."""
    own = "iter00_baseline:scheduler=priority-fcfs;priority_policy={}:ages"
    folder = Path(user_policies.__file__)
    with pytest.raises(NotMappedError, match=r"order ages.*reads now_us.*heap.*slo-tiered"):
        plugins_of(promotion(own.format(folder)))


def test_names_of_plugins_are_their_own() -> None:
    target = targets.load(DEFAULT_TARGET)
    names = [names_of(one, target) for one in shipped_rules()]
    assert len({one.path for one in names}) == len(names)
    assert not [one for one in names if target.is_taken(one.plugin_type, one.path)]


def test_a_parameter_has_the_policy_s_bounds_in_the_factory() -> None:
    text = _source("admission", "token-bucket")
    number = numbers_of(rule("admission", "token-bucket").policies[0].params)["capacity"]
    assert number.excludes_low and number.low == 0
    assert "if p.Capacity <= 0 {" in text
    assert "capacity must be above 0, got %v" in text
    assert "raw.DisallowUnknownFields()" in text


def test_freshness_is_told_where_a_signal_is_read() -> None:
    lines = [line.strip() for line in _source("admission", "slo-queue-gated").splitlines()]
    at = lines.index("read.queueDepth = int32(waiting)")
    assert lines[at - 3] == "// Map B: snapshots.queue_depth is vllm:num_requests_waiting."
    assert "scraped every 50 ms" in lines[at - 2] and "In the simulator" in lines[at - 1]


def test_a_state_is_guarded_and_told_to_be_per_replica() -> None:
    text = _source("admission", "token-bucket")
    assert "s.mutex.Lock()" in text and "in this replica of the endpoint picker only" in text


def test_every_package_has_its_assertion_and_says_what_it_consumes() -> None:
    text = _source("scorer", "prefix-affinity")
    assert "var _ fwksched.Scorer = &PrefixAffinityScorer{}" in text
    assert "attrprefix.PrefixCacheMatchInfoDataKey: attrprefix.PrefixCacheMatchInfo{}" in text
    assert "return fwksched.Affinity" in text


def _source(kind: str, name: str) -> str:
    from sweeps.promote.golang.sources import source

    return source(plugin_of(rule(kind, name), targets.load(DEFAULT_TARGET)))


def test_the_older_target_differs_by_its_file_only() -> None:
    from sweeps.promote.golang.sources import source

    older = targets.load("llm-d-inference-scheduler@main-520af478")
    gate = source(plugin_of(rule("admission", "slo-gated"), older))
    assert "AdmitRequest(_ context.Context," in gate and "raw json.RawMessage" in gate
    score = source(plugin_of(rule("scorer", "load-balance"), older))
    assert (
        "_ *fwksched.CycleState" in score
        and "map[string]any{attrconcurrency.InFlightLoadKey:" in score
    )
    function = plugin_of(rule("scorer", "load-balance"), targets.load(DEFAULT_TARGET)).function.text
    assert function in score  # what is compiled is the same


def test_the_registration_is_a_patch_of_the_runner(tmp_path: object) -> None:
    import subprocess
    from pathlib import Path

    folder = Path(str(tmp_path))
    target = targets.load(DEFAULT_TARGET)
    found = plugins_for([user_rule("routing", "shortest_queue")], target)
    runner = folder / target.manifest["runner"]["path"]
    runner.parent.mkdir(parents=True)
    runner.write_text(minimal_runner(target))
    (folder / "one.patch").write_text(found.files[f"{FOLDER}/registration.patch"])
    subprocess.run(["git", "init", "-q", "."], cwd=folder, check=True)
    subprocess.run(["git", "apply", "--whitespace=nowarn", "one.patch"], cwd=folder, check=True)
    text = runner.read_text()
    assert '/plugins/scheduling/scorer/shortestqueuerouting"\n)' in text
    assert (
        "\tfwkplugin.Register(shortestqueuerouting.ShortestQueueRoutingScorerType, fwkplugin.StabilityAlpha, "
        "shortestqueuerouting.ShortestQueueRoutingScorerFactory)\n"
    ) in text

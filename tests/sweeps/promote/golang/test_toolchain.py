"""Go's own tools over what is generated: every shipped policy, and mutations that must fail."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from sweeps.promote import DEFAULT_TARGET
from sweeps.promote.gates import findings_at
from sweeps.promote.golang import target as targets
from sweeps.promote.golang.plugins import (
    FOLDER,
    Plugins,
    plugin_of,
    plugins_for,
    plugins_of,
    shipped_rules,
)
from sweeps.promote.golang.target import MISSING, check_go, find_go
from sweeps.promote.golang.tracing import PromotedRule
from sweeps.promote.promotion import NotMappedError
from sweeps.promote.store import target_names
from tests.sweeps.promote.golang.rules import rule, user_rule
from tests.sweeps.promote.promotions import promotion

pytestmark = [
    pytest.mark.lenient_promotion,
    pytest.mark.filterwarnings("ignore:the scorer:blis_jax.errors.ConfigWarning"),  # beyond 1
]
OLDER = "llm-d-inference-scheduler@main-520af478"
OF_A_USER = [
    ("routing", "shortest_queue"), ("scorer", "real_functions"), ("scorer", "whole_functions"),
    ("scorer", "between_endpoints"), ("scorer", "library_functions"),
    ("admission", "smoothed_coin"), ("priority", "short_first"),
]  # fmt: skip
# a sign and a weight of each kind: package, what is there, what is put in its place
MUTATIONS = [
    ("scorer/slopriority", "+ neutral", "- neutral"),
    ("scorer/slopriority", "bias = p.BiasCritical", "bias = 1.01 * p.BiasCritical"),
    ("admitter/classgated", "limit = p.SheddableLoad", "limit = 1.05 * p.SheddableLoad"),
    ("admitter/classgated", "drawn < p.Probability", "drawn > p.Probability"),
    ("admitter/tokenbucket", "tokens - float64", "tokens + float64"),
    ("ordering/slotieredpriorityfcfs", "= p.BaseStandard", "= 1.01 * p.BaseStandard"),
    ("ordering/slotieredpriorityfcfs", "return -(", "return +("),
    ("scorer/kvadaptiverouting", "= p.PressedKv", "= 1.2 * p.PressedKv"),
]


@pytest.fixture(scope="module")
def go() -> Path:
    found = find_go()
    if found is None:
        pytest.skip(MISSING)
    return found


@pytest.fixture(scope="module")
def shipped(go: Path) -> Plugins:
    """Plugins of all policies that have one, and of a user's."""
    del go
    return plugins_for(_rules(DEFAULT_TARGET), targets.load(DEFAULT_TARGET))


def _rules(target: str) -> list[PromotedRule]:
    rules = []
    for one in shipped_rules():
        try:
            plugin_of(one, targets.load(target))
        except NotMappedError:
            continue
        rules.append(one)
    return rules + [user_rule(kind, name) for kind, name in OF_A_USER]


def test_every_plugin_is_formatted_vetted_and_equal_to_its_policy(shipped: Plugins) -> None:
    assert len(shipped.generated) >= 40
    assert check_go(shipped.files, DEFAULT_TARGET) == []


def test_mutated_plugins_fail(shipped: Plugins, go: Path) -> None:
    """In one module and one run: every mutation is a copy of its package, and the unchanged copy passes."""
    with targets.module_of(shipped.files, DEFAULT_TARGET) as folder:
        for place, (package, old, new) in enumerate([*MUTATIONS, (MUTATIONS[0][0], "", "")]):
            (origin,) = (path for path in folder.rglob(package) if path.is_dir())
            copy = folder / "mutated" / f"m{place}"
            shutil.copytree(origin, copy)
            (source,) = (path for path in copy.glob("*.go") if not path.name.endswith("_test.go"))
            text = source.read_text()
            assert old in text, (package, old)
            source.write_text(text.replace(old, new, 1) if old else text)
        done = subprocess.run(
            [go, "test", "./mutated/..."],
            cwd=folder, capture_output=True, text=True, check=False, env=targets.environment(None),
        )  # fmt: skip
    said = re.findall(r"^(ok|FAIL)\s+\S+/mutated/(m\d+)", done.stdout, re.M)
    results = {name: verdict for verdict, name in said}
    assert "build failed" not in done.stdout
    assert results == {f"m{place}": "FAIL" for place in range(len(MUTATIONS))} | {
        f"m{len(MUTATIONS)}": "ok"
    }


def test_text_that_gofmt_would_change_is_found(go: Path) -> None:
    del go
    path = f"{FOLDER}/pkg/bad/bad.go"
    (found,) = check_go({path: "package bad\n\nfunc  f() {}\n"}, DEFAULT_TARGET)
    assert (found.severity, found.rule, found.path) == ("CRITICAL", "gofmt", path)


def test_code_that_does_not_compile_is_found(go: Path) -> None:
    del go
    bad = "package bad\n\nfunc f() int { return x }\n"
    found = check_go({f"{FOLDER}/pkg/bad/bad.go": bad}, DEFAULT_TARGET)
    assert "go-vet" in {one.rule for one in found}
    assert any("undefined: x" in one.message for one in found)


def test_without_a_toolchain_the_check_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "find_go", lambda: None)
    (found,) = check_go({}, DEFAULT_TARGET)
    assert found.severity == "IMPORTANT" and "install the extra `promote`" in found.message


@pytest.mark.parametrize("target", [one for one in target_names() if one != DEFAULT_TARGET])
def test_a_plugin_of_each_kind_passes_on_other_targets(go: Path, target: str) -> None:
    del go
    rules = [
        rule("scorer", "prefix-affinity"),
        rule("admission", "token-bucket"),
        user_rule("priority", "short_first"),
    ]
    found = plugins_for(rules, targets.load(target))
    assert check_go(found.files, target) == []


def test_gate_1_holds_plugins_against_the_target_of_the_promotion(go: Path) -> None:
    del go
    older = replace(promotion("iter16_class_gate@found"), target=OLDER)
    findings = findings_at(older, 1, plugins_of(older).files)
    assert [finding for finding in findings if finding.rule.startswith("go")] == []

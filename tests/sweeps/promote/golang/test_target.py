"""Manifests of targets: that they hold together, and how formulas become Go and numbers."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

from blis_jax.core.types import RequestView, Snapshots
from blis_jax.errors import ConfigError
from blis_jax.policies.contexts import GatewayContext, QueueContext
from sweeps.promote import DEFAULT_TARGET
from sweeps.promote.golang import target as targets
from sweeps.promote.llmd.documents import target_types
from sweeps.promote.maps import PolicyRow, rows_of
from sweeps.promote.store import target_file, target_names

_MEMBER = re.compile(r"(\w+)(\(.*)")


def go_declarations(text: str) -> dict[str, str]:
    """Return exported functions, methods and fields of a Go text with their types, without names and packages."""
    found: dict[str, str] = {}
    holder = ""
    for line in text.splitlines():
        if match := re.match(r"type (\w+) (struct|interface) \{$", line):
            holder = match[1]
        elif match := re.match(r"type (\w+) func(\(.*)", line):
            found[match[1]] = f"func{_types(match[2])}"
        elif match := re.match(r"func (?:\(\w+ \*?(\w+)\) )?([A-Z]\w*)(\(.*) \{", line):
            if match[1] is None or match[1][0].isupper():
                found[f"{match[1]}.{match[2]}" if match[1] else match[2]] = _types(match[3])
        elif line == "}":
            holder = ""
        elif holder[:1].isupper() and (match := re.match(r"\t([A-Z]\w*)(\(.*)", line)):
            found[f"{holder}.{match[1]}"] = _types(match[2])
        elif holder[:1].isupper() and (match := re.match(r"\t([A-Z]\w*(?:, \w+)*)\s+(\S+)$", line)):
            found |= {f"{holder}.{name}": _bare(match[2]) for name in match[1].split(", ")}
    return found


def _types(signature: str) -> str:
    """Return arguments and results of `(a, b int) error` as types alone."""
    signature = re.sub(r"func\((\w+)\)", r"func<\1>", signature)  # an argument of its own
    given, _, result = signature.partition(")")
    result = result.strip()
    results = result.strip("()").split(", ") if result else []
    words = [_bare(one.rpartition(" ")[2]) for one in results]
    kinds: list[str] = []
    for one in reversed(given.lstrip("(").split(", ") if given != "(" else []):
        is_name_alone = " " not in one and kinds and re.search(r"\w \S", given) is not None
        kinds.append(kinds[-1] if is_name_alone else _bare(one.rpartition(" ")[2]))
    text = f"({', '.join(reversed(kinds))})"
    text += f" ({', '.join(words)})" if len(words) > 1 else f" {words[0]}" if words else ""
    return re.sub(r"func<(\w+)>", r"func(\1)", text)


def _bare(kind: str) -> str:
    return re.sub(r"\b\w+\.", "", kind)


@pytest.mark.parametrize("name", target_names())
def test_a_manifest_holds_together(name: str) -> None:
    target = targets.load(name)
    manifest = target.manifest
    assert re.fullmatch(r"[0-9a-f]{40}", manifest["commit"])
    for path in manifest["signals"]:
        signal = target.signal(path)
        assert signal is not None and signal.readings
        assert set(signal.readings) <= set(target.readings)
        assert all(signal.declared[key] for key in ("metric", "refresh", "simulator"))
    for reading in target.readings.values():
        assert reading.of in ("metrics", "request", "item", "clock", *manifest["attributes"])


@pytest.mark.parametrize("name", target_names())
def test_name_tag_and_commit_agree(name: str) -> None:
    """A version of numbers is that very tag; another has the branch and the commit in its name."""
    manifest = targets.load(name).manifest
    repository, version = name.split("@")
    described, commit = manifest["describe"], manifest["commit"]
    assert re.fullmatch(r"[0-9a-f]{40}", commit)
    assert manifest["repository"] == f"llm-d/{repository}"
    if re.fullmatch(r"[0-9.]+", version):
        assert described == f"v{version}"
    else:
        assert version == f"main-{commit[:8]}"
        behind = re.fullmatch(r".+-[1-9][0-9]*-g([0-9a-f]{8,})", described)
        assert behind and commit.startswith(behind[1])


@pytest.mark.parametrize("name", target_names())
def test_stubs_declare_what_the_commit_declares(name: str) -> None:
    recorded = target_file(name, "signatures.yaml")
    manifest = targets.load(name).manifest
    assert {path for path, of in recorded.items() if of} == set(manifest["packages"])
    for path, text in manifest["packages"].items():
        stub = go_declarations(text.replace("{key_type}", manifest["key_type"]))
        assert stub == recorded[path], path


def test_a_release_and_main_differ_where_the_release_does_not_compile() -> None:
    release, main = (
        target_file(f"llm-d-router@{one}", "signatures.yaml") for one in ("0.10.0", "main-ebab6879")
    )
    of_endpoint = "pkg/epp/framework/interface/scheduling"
    assert release[of_endpoint]["Endpoint.Get"] == "(string) (Cloneable, bool)"
    assert main[of_endpoint]["Endpoint.Get"] == "(DataKey) (Cloneable, bool)"


@pytest.mark.parametrize(("name", "count"), [("0.10.0", 96), ("main-ebab6879", 97)])
def test_everything_that_the_router_registers_is_there(name: str, count: int) -> None:
    types = target_types(f"llm-d-router@{name}").plugins
    assert len(types) == count and all(one.package for one in types.values())
    named = {row.plugin for row in rows_of(PolicyRow) if row.plugin} | {
        row.producer for row in rows_of(PolicyRow) if row.producer
    }
    assert named <= set(types)


def test_every_signal_of_a_context_has_a_row() -> None:
    """What a policy may read is mapped, or there is a proposal; fields that carry others or that move are none."""
    inner = {"request": RequestView, "snapshots": Snapshots}
    paths = set()
    for context in (GatewayContext, QueueContext):
        for field in dataclasses.fields(context):
            below = inner.get(field.name)
            names = [one.name for one in dataclasses.fields(below)] if below else []
            paths |= {f"{field.name}.{one}" for one in names} or {field.name}
    manifest = targets.load(DEFAULT_TARGET).manifest
    known = set(manifest["signals"]) | set(manifest["missing"])
    not_signals = {
        "contents",
        "outstanding",
        "came_from",
        "computed_tokens",
        "priority",
        "snapshots.is_active",
    }
    assert paths - known == not_signals


def test_a_formula_is_the_same_in_go_and_in_python() -> None:
    target = targets.load(DEFAULT_TARGET)
    types = {name: one.type for name, one in target.readings.items()}
    pending = target.signal("snapshots.num_pending")
    free = target.signal("snapshots.free_kv_blocks")
    assert pending is not None and free is not None
    assert (
        pending.go("int32", types, str.upper)
        == "int32(max(0, IN_FLIGHT-int64(WAITING)-int64(RUNNING)))"
    )
    given = {
        "in_flight": np.array([7, 2]),
        "waiting": np.array([2, 2]),
        "running": np.array([4, 4]),
    }
    assert pending.values(given).tolist() == [1, 0]
    assert free.go("float64", types, str.upper) == "float64(KV_BLOCKS) * (1 - KV_USAGE)"
    assert free.values({"kv_blocks": np.array([100]), "kv_usage": np.array([0.25])}).tolist() == [
        75.0
    ]


def test_classes_follow_the_priority() -> None:
    signal = targets.load(DEFAULT_TARGET).signal("request.slo_class")
    assert signal is not None
    priorities = np.array([100, 4, 3, 1, 0, -1, -2, -3, -9])
    classes = signal.values({"priority": priorities}).tolist()
    assert classes == [1, 1, 2, 2, 0, 4, 3, 5, 3]


def test_an_unknown_target_is_a_sentence() -> None:
    with pytest.raises(
        ConfigError, match=r"target 'llm-d-router@0.9' is not known; use one of .*did you mean"
    ):
        targets.load("llm-d-router@0.9")

"""Our closed schemas against the definitions of the project, where those lie beside the checkout."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from sweeps.promote.checks.documents import schema, target_types
from tests.support.recorded.reference_data import REPO_ROOT

FOLDER = REPO_ROOT.parent / "shared/data/llmd_schemas"
FILES = {
    "inference-objective": "llm-d.ai_inferenceobjectives.yaml",
    "inference-pool": "inference.networking.k8s.io_inferencepools.yaml",
}
BOUNDS = ("minimum", "maximum", "minItems", "maxItems", "minProperties", "maxProperties")
SAME = (*BOUNDS, "enum", "maxLength", "minLength")

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no {FOLDER}")


def definition(name: str) -> dict[str, Any]:
    return yaml.safe_load((FOLDER / FILES[name]).read_text(encoding="utf-8"))["spec"]


def resolved(part: dict[str, Any], whole: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in part:
        return whole["$defs"][part["$ref"].rpartition("/")[2]]
    return part


def compare(ours: dict[str, Any], theirs: dict[str, Any], whole: Any, place: str) -> None:
    ours = resolved(ours, whole)
    assert ours.get("type", theirs["type"]) == theirs["type"], place
    for key in SAME:
        if key in theirs and theirs[key] != 0 and theirs.get("format") != "int32":
            assert ours.get(key) == theirs[key], f"{place}: {key}"
    if "properties" in theirs and place != "metadata":
        assert set(ours["properties"]) == set(theirs["properties"]) - {"status"}, place
        assert set(theirs.get("required", ())) <= set(ours.get("required", ())), place
        for name, part in ours["properties"].items():
            if name not in ("metadata", "apiVersion", "kind") or place != "document":
                compare(part, theirs["properties"][name], whole, name)
    if "items" in theirs:
        compare(ours["items"], theirs["items"], whole, f"{place}[]")


@pytest.mark.parametrize("name", FILES)
def test_our_schema_has_the_fields_and_bounds_of_the_definition(name: str) -> None:
    found = definition(name)["versions"][0]["schema"]["openAPIV3Schema"]
    compare(dict(schema(name)), found, schema(name), "document")


def test_the_groups_are_those_of_the_definitions() -> None:
    types = target_types("llm-d-router@0.10.0")
    for name, version in (
        ("inference-objective", types.objective_api_version),
        ("inference-pool", types.pool_api_version),
    ):
        spec = definition(name)
        assert version == f"{spec['group']}/{spec['versions'][0]['name']}"
        assert schema(name)["properties"]["kind"]["const"] == spec["names"]["kind"]

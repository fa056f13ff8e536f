"""YAML: every text ends in a value or in one sentence with its line, in little time."""

from __future__ import annotations

import pytest

from blis_jax.errors import ConfigError
from blis_jax.files.strict_yaml import read_documents, read_yaml
from blis_jax.workload.spec import parse_spec

LEVELS = 12  # of ten aliases each: written out, more than a memory holds
DAMAGED = (
    "x: !!float abc", "x: !!float ''", "x: !!float 1:a", "x: !!bool abc", "x: !!int 0b2", "x: !!int ''",
    "x: !!timestamp abc", "x: !!timestamp 2030-13-45", "x: !!binary é", "!!int x: 1", "x: 0x_",
    "? [a]\n: 1", "{{a: 1}: 2}", "x: *unknown", f"x: {'1' * 5000}",
)  # fmt: skip


def nested(first: str, level: str) -> str:
    lines = [f"a0: &a0 {first}"]
    for place in range(1, LEVELS):
        lines.append(f"a{place}: &a{place} " + level % ",".join([f"*a{place - 1}"] * 10))
    return "\n".join(lines)


@pytest.mark.parametrize("text", DAMAGED)
def test_what_a_tag_cannot_hold_is_refused_at_its_line(text: str) -> None:
    for read in (read_yaml, read_documents):
        with pytest.raises(ConfigError, match=r"^f\.yaml, line 2: "):
            read(f"# one\n{text}", "f.yaml")


def test_dates_are_texts() -> None:
    """As the library that BLIS reads with puts them into fields that are texts."""
    found = read_yaml("[2030-12-01, 2030-13-45, 2001-01-01t01:01:01.1+99:99]", "f.yaml")
    assert found == ["2030-12-01", "2030-13-45", "2001-01-01t01:01:01.1+99:99"]


def test_numbers_are_those_of_blis() -> None:
    found = read_yaml("[0o10, 010, 0x10, 1_000, 1:30, 190:20:30.5, =, 0o, 1.5e+3]", "f.yaml")
    assert found == [8, 8, 16, 1000, "1:30", "190:20:30.5", "=", "0o", 1500.0]


def test_merge_keys() -> None:
    """By the rules of YAML 1.1: a key beside `<<` wins wherever it stands, then the first mapping."""
    text = "- &a {x: 1, y: 1}\n- &b {x: 2, z: 2}\n- {y: 3, <<: *a}\n- {<<: [*a, *b], w: 4}\n- {<<: {x: 5}}"
    found = read_yaml(text, "f.yaml")[2:]
    assert found == [{"x": 1, "y": 3}, {"x": 1, "y": 1, "z": 2, "w": 4}, {"x": 5}]
    assert read_yaml('{"<<": 1}', "f.yaml") == {"<<": 1}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: {<<: {x: 1}, <<: {y: 1}}", "the key '<<' is given twice"),
        ("a: &a {x: 1, x: 2}\nb: {<<: *a}", "the key 'x' is given twice"),
        ("b: {<<: &a {x: 1, x: 2}}", "the key 'x' is given twice"),
        ("a: &a {<<: *a}", "<< puts a mapping into itself"),
        ("a: {<<: 3}", "expected a mapping or list of mappings"),
    ],
)
def test_merge_keys_that_mean_nothing(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        read_yaml(text, "f.yaml")


def test_clients_of_one_anchor() -> None:
    client = (
        "{id: a, slo_class: batch, rate_fraction: 0.5, arrival: {process: poisson},"
        " input_distribution: {type: constant, params: {value: 10}},"
        " output_distribution: {type: constant, params: {value: 5}}}"
    )
    text = f"aggregate_rate: 5\nnum_requests: 4\nclients:\n- &a {client}\n- {{<<: *a, id: b}}\n"
    first, second = parse_spec(text, "f.yaml").clients
    assert second == first.model_copy(update={"id": "b"})


@pytest.mark.parametrize("text", [nested("[x]", "[%s]"), nested("{x: 1}", "{<<: [%s]}")])
def test_aliases_of_aliases_end(text: str) -> None:
    assert len(read_yaml(f"{text}\n# \\ud800", "f.yaml")) == LEVELS
    with pytest.raises(ConfigError, match="half of a character"):
        read_yaml(f'{text}\nx: "\\ud800"', "f.yaml")

"""Slow tests are dealt out in parts, and no part forgets one."""

import itertools
import json
import subprocess
from pathlib import Path

import pytest

from tests.support import rotation
from tests.support.rotation import distances, nearest, part_of, rotating

KINDS = [*"a" * 430, *"bcd", *"e" * 9, "b"]


@pytest.mark.parametrize("num_parts", [1, 2, 64, 1000])
def test_every_test_is_in_exactly_one_part(num_parts: int):
    parts = [part_of(KINDS, part, num_parts) for part in range(1, num_parts + 1)]
    assert sorted(itertools.chain(*parts)) == list(range(len(KINDS)))
    assert all(part == sorted(part) for part in parts)


def test_neighbours_of_a_large_kind_stay_together_and_parts_are_alike():
    parts = [part_of(KINDS, part, 64) for part in range(1, 65)]
    for part in parts:
        of_a = [place for place in part if KINDS[place] == "a"]
        assert len(of_a) <= 7
        assert of_a == [of_a[0] + place for place in range(len(of_a))]
    assert max(map(len, parts)) <= 8
    assert max(sum(KINDS[place] == "e" for place in part) for part in parts) == 1


def test_what_does_not_run_always_is_slow():
    first, second = rotating(["x", ("y", 1)], always=["x"])
    assert first.values == ("x",) and not first.marks
    assert second.values == ("y", 1) and [mark.name for mark in second.marks] == ["slow"]
    with pytest.raises(AssertionError, match="not among the values"):
        rotating(["x"], always=["z"])


@pytest.fixture
def small_tree(tmp_path: Path) -> Path:
    for name, text in {
        "blis_jax/core.py": "",
        "blis_jax/engine.py": "from blis_jax import core",
        "blis_jax/other.py": "",
        "sweeps/library/arm.yaml": "",
        "sweeps/library/__init__.py": "",
        "sweeps/library/reads.py": "",
        "tests/test_engine.py": "def test_a():\n    import blis_jax.engine",
        "tests/test_other.py": "from blis_jax import other",
        "tests/test_core.py": "from blis_jax.core import x",
        "tests/test_arm.py": "from sweeps.library import reads",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_a_test_is_as_far_from_a_change_as_there_are_imports_between(small_tree: Path) -> None:
    away = distances({"blis_jax/core.py"}, small_tree)
    assert (away["tests.test_core"], away["tests.test_engine"]) == (1, 2)
    assert "tests.test_other" not in away
    assert distances({"sweeps/library/arm.yaml"}, small_tree)["tests.test_arm"] == 1
    assert distances({"docs/page.md"}, small_tree) == {}


def test_the_nearest_slow_tests_run_as_many_as_fit() -> None:
    kinds = ["tests/test_far.py::a", *["tests/test_near.py::b"] * 4, "tests/test_not.py::c"]
    away = {"tests.test_near": 1, "tests.test_far": 2}
    seconds = {"tests/test_near.py::b": 10.0, "tests/test_far.py::a": 5.0}
    assert nearest(kinds, away, seconds, most_seconds=1000) == [0, 1, 2, 3, 4]
    assert nearest(kinds, away, seconds, most_seconds=26) == [0, 1, 2]
    assert nearest(kinds, away, seconds, most_seconds=20, turn=3) == [1, 4]
    assert nearest(kinds, {}, {}, most_seconds=1000) == []


def test_what_differs_from_a_revision_is_what_git_says(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        identity = "-c", "user.name=a", "-c", "user.email=a@b"
        subprocess.run(["git", "-C", str(tmp_path), *identity, *words], check=True)

    git("init", "-q")
    (tmp_path / "old.py").write_text("")
    git("add", "old.py")
    git("commit", "-qm", "first")
    (tmp_path / "new.py").write_text("")
    assert rotation.changed_since("HEAD", tmp_path) == {"new.py"}


def test_a_turn_takes_over_what_was_measured(tmp_path: Path) -> None:
    turn, seconds, measured = (tmp_path / name for name in ("turn", "seconds", "measured"))
    turn.write_text("7\n")
    seconds.write_text(json.dumps({"b": 2.0, "a": 1.0}))
    measured.write_text(json.dumps({"b": 3.0}))
    assert rotation.raise_turn(turn, seconds, measured) == 8
    assert turn.read_text() == "8\n" and json.loads(seconds.read_text()) == {"a": 1.0, "b": 3.0}


def test_twenty_turns_run_every_slow_test() -> None:
    kinds = [f"kind {number % 40}" for number in range(2676)]
    parts = [part_of(kinds, turn % 20 + 1, 20) for turn in range(13, 33)]
    assert sorted(itertools.chain(*parts)) == list(range(len(kinds)))

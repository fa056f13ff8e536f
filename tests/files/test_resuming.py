"""The one rule for going on: the same work, by everything its numbers depend on."""

from __future__ import annotations

from pathlib import Path

import pytest

from blis_jax.errors import ConfigError
from blis_jax.files import atomic_write
from blis_jax.files.journal import Journal


def test_what_differs_is_named() -> None:
    before, now = {"seeds": 1, "metrics": 2, "targets": 3}, {"seeds": 1, "metrics": 3, "window": 4}
    with pytest.raises(ConfigError) as refused:
        atomic_write.refuse_other_work(Path("a.json"), before, now)
    assert str(refused.value) == (
        "a.json was made with different metrics, window, targets; give --overwrite or another --output"
    )
    atomic_write.refuse_other_work(Path("a.json"), now, dict(now))


def test_equal_content_has_equal_fingerprints() -> None:
    one = atomic_write.fingerprint({"a": (1, 2.5), "b": None})
    assert one == atomic_write.fingerprint({"b": None, "a": [1, 2.5]})
    assert one != atomic_write.fingerprint({"a": (1, 2.6), "b": None})


def test_another_jax_is_other_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "runs.jsonl"
    Journal(path, "comparison", {"seeds": 1}).begin()
    monkeypatch.setattr(atomic_write, "version_of", lambda package: f"{package} 9")
    with pytest.raises(ConfigError, match="different version of blis_jax, version of JAX"):
        Journal(path, "comparison", {"seeds": 1}).lines()


def test_a_record_of_an_earlier_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text('{"comparison": "0123456789abcdef", "version": 1}\n')
    with pytest.raises(ConfigError, match="a record of another version; give --overwrite"):
        Journal(path, "comparison", {"seeds": 1}).lines()

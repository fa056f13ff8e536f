"""Every way to damage one file of a store, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WAYS = ("deleted", "flipped", "cut")


def files_of(store: Path) -> list[str]:
    """The files of a folder."""
    return sorted(str(path.relative_to(store)) for path in store.rglob("*") if path.is_file())


def flip(path: Path, place: float = 0.5) -> None:
    """Turns one bit of a file round, at a share of its length."""
    content = bytearray(path.read_bytes())
    at = min(int(place * len(content)), len(content) - 1)
    content[at] ^= 1 << (at % 8)
    path.write_bytes(content)


def damage(path: Path, way: str) -> None:
    """Damages a file."""
    if way == "deleted":
        path.unlink()
    elif way == "flipped":
        flip(path)
    else:
        path.write_bytes(path.read_bytes()[:-1])


@contextmanager
def damaged(store: Path, piece: str, way: str) -> Iterator[None]:
    """Damages a file of a store for a while."""
    path = store / piece
    content = path.read_bytes()
    damage(path, way)
    try:
        yield
    finally:
        path.write_bytes(content)

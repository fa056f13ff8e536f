"""Parts of long evidence, each made once: a count of them, and a journal from which a stopped command goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from blis_jax.commands import cli
from blis_jax.files.chain import Journal
from blis_jax.progress import Phase, phase


class EvidenceParts:
    """Make parts by name, or take them from the journal; say how many of them are done."""

    def __init__(self, shown: Phase | None = None, journal: Journal | None = None) -> None:
        self.shown, self.journal = shown, journal
        self.kept: dict[str, Any] = dict(journal.lines()) if journal is not None else {}
        if journal is not None:
            journal.begin()

    def expect(self, total: int, unit: str) -> None:
        """Say how many steps there will be, and what they are called."""
        if self.shown is not None:
            self.shown.total, self.shown.unit = total, unit

    def of(self, name: str, make: Callable[[], Any]) -> Any:
        """Return a part, plain values that JSON can keep; make it if no earlier call has."""
        if name not in self.kept:
            self.kept[name] = make()
            if self.journal is not None:
                self.journal.append([name, self.kept[name]])
        return self.kept[name]

    @contextmanager
    def step(self, item: str) -> Iterator[None]:
        """Show what is in the making, and count it as done."""
        if self.shown is not None:
            self.shown.show(self.shown.done, item)
        before = len(self.kept)
        yield
        if self.shown is not None:
            self.shown.done_earlier += len(self.kept) == before  # taken from the journal
            self.shown.advance()


@contextmanager
def journaled(
    command: str, what: str, path: Path, content: Mapping[str, Any], is_resumed: bool
) -> Iterator[EvidenceParts]:
    """Keep parts in a journal while the block lasts; remove it when all are done."""
    journal = Journal(path, "evidence", content)
    with cli.resumable(command, path), journal.held(is_resumed):
        with phase(what) as shown:
            yield EvidenceParts(shown, journal)
        path.unlink(missing_ok=True)

"""A result on disk: saved at once or filled part by part, and resumed if it belongs to the same question.

An existing store is replaced with `--overwrite`, continued with `--resume` by the rule of
`blis_jax.files.atomic_write`, and else left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from blis_jax.commands import cli
from blis_jax.errors import ConfigError, refusing_unwritable
from blis_jax.files import manifest
from blis_jax.files.atomic_write import ADVICE, refuse_other_work
from blis_jax.lazy import zarr
from blis_jax.results import dataset as datasets
from blis_jax.results.schema import NOT_RUN

if TYPE_CHECKING:
    import xarray as xr

    from blis_jax.progress import Phase

OUTCOME = "outcome"  # array that is written last and says which rows are there


class Store:
    """A dataset that a command writes; its manifest lists the complete pieces."""

    kind: ClassVar[str] = ""  # every dataset is accepted if it is empty
    wanted: ClassVar[str] = "another path"
    advice: ClassVar[str] = ADVICE
    decisive: ClassVar[Mapping[str, str]] = {}  # attributes that the numbers depend on, in words

    def __init__(self, path: Path, command: str) -> None:
        """Open nothing yet; `command` is the name that remarks begin with."""
        self.path, self.command = path, command

    # --- what it is of ---

    def content(self, attributes: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the attributes on which a dataset's numbers depend, by a description of each in words."""
        return {words: attributes.get(name) for name, words in self.decisive.items()}

    def refuse_other(self, stored: xr.Dataset, wanted: xr.Dataset) -> None:
        """Refuse to continue a stored dataset that answers another question than `wanted`."""
        self._refuse_other_kind(stored)
        before, now = (
            {**self.content(attributes), "--part": attributes.get("part")}
            for attributes in (stored.attrs, wanted.attrs)
        )
        refuse_other_work(self.path, before, now, self.advice)

    def _refuse_other_kind(self, dataset: xr.Dataset) -> None:
        if self.kind and dataset.attrs.get("kind") != self.kind:
            raise ConfigError(f"{self.path} is something else; give {self.wanted}")

    # --- whole ---

    def load(self) -> xr.Dataset:
        """Load the dataset; raise ConfigError if it is damaged or of another kind."""
        dataset = datasets.load_or_refuse(self.path, self.advice)
        self._refuse_other_kind(dataset)
        return dataset

    def save(self, dataset: xr.Dataset) -> None:
        """Write a dataset atomically."""
        datasets.save(dataset, self.path)

    # --- part by part ---

    def begin(self, empty: xr.Dataset, is_resumed: bool) -> xr.Dataset:
        """Create the store from `empty`, one chunk for each part; with `is_resumed` open the existing one, if any."""
        if is_resumed and self.path.exists():
            return self.resume(lambda stored: self.refuse_other(stored, empty), empty)
        with cli.writing(self.path):
            datasets.save(empty, self.path, _filled(empty))
        return empty

    def resume(
        self, check: Callable[[xr.Dataset], None], empty: xr.Dataset | None = None
    ) -> xr.Dataset:
        """Return the stored dataset, unless `check` raises.

        Parts with a damaged or half-written piece count as not run, with a remark; they are reset to the values in
        `empty`. Damage elsewhere is refused. A store without a manifest gets one.
        """
        record = manifest.read(self.path) if self.path.is_dir() else None
        if record is None:
            dataset = datasets.load_or_refuse(self.path, self.advice)
            check(dataset)
            manifest.seal(self.path, _filled(dataset))
            return dataset
        damages = manifest.damages(self.path, record)
        if not all(manifest.is_in_a_part(damage, record) for damage in damages):
            raise manifest.refusal(self.path, damages, record)
        dataset = datasets.open_unchecked(self.path)
        check(dataset)
        self._drop(damages)
        concerned = self._rows_of(damages)
        if empty is not None:
            for array, rows in concerned:
                names = (array, OUTCOME)
                self.write(rows.start, {name: empty[name].values[rows] for name in names})
        dataset.load()
        for _, rows in concerned:
            dataset[OUTCOME].values[rows] = NOT_RUN
        return dataset

    def fill(
        self,
        make: Callable[[range], Mapping[str, np.ndarray]],
        left: np.ndarray,
        rows_per_part: int,
        work: Phase,
        remark: Callable[[], str] = str,
    ) -> None:
        """Make and write the rows with work `left` (`[row]`, in units of `work`), part by part; `remark` is shown."""
        for rows in _unmade_parts(left == 0, rows_per_part):
            self.write(rows.start, make(rows))
            work.show(work.done + int(left[rows.start : rows.stop].sum()), remark())

    def write(self, first: int, part: Mapping[str, np.ndarray]) -> None:
        """Fill rows from `first` on, the outcomes last; then add their pieces to the manifest."""
        with refusing_unwritable(self.path):
            self._write(zarr.open_group(self.path, mode="r+"), first, part)

    def _write(self, group: Any, first: int, part: Mapping[str, np.ndarray]) -> None:
        written = []
        for name in sorted(part, key=lambda name: name == OUTCOME):
            values, chunk = part[name], group[name].chunks[0]
            group[name][first : first + len(values)] = values
            chunks = range(first // chunk, (first + len(values) - 1) // chunk + 1)
            written += [f"{name}/c/{place}" for place in chunks]
        manifest.reseal(self.path, written)

    def _drop(self, damages: Sequence[manifest.Damage]) -> None:
        """Remove damaged pieces, so that nobody can read them, and print a remark."""
        for damage in damages:
            (self.path / damage.piece).unlink(missing_ok=True)
        for half_written in self.path.rglob("*.partial"):
            half_written.unlink(missing_ok=True)
        if damages:
            more = f" and {len(damages) - 1} more" if len(damages) > 1 else ""
            cli.say(
                self.command,
                f"note: {self.path}: {damages[0].piece} {damages[0].what}{more}; "
                "the parts concerned are made again",
            )

    def _rows_of(self, damages: Sequence[manifest.Damage]) -> list[tuple[str, slice]]:
        """Return array and rows of each part with a damaged piece."""
        group: Any = zarr.open_group(self.path, mode="r")
        rows = []
        for array, place in {
            (p[0], int(p[2])) for p in (damage.piece.split("/") for damage in damages)
        }:
            chunk = group[array].chunks[0]
            rows.append((array, slice(place * chunk, (place + 1) * chunk)))
        return rows


def _unmade_parts(done: np.ndarray, rows_per_part: int) -> Iterator[range]:
    """Yield for each unfinished part the span from its first to its last undone row; `done` is `[row]`."""
    for first in range(0, len(done), rows_per_part):
        missing = first + np.flatnonzero(~done[first : first + rows_per_part])
        if len(missing):
            yield range(int(missing[0]), int(missing[-1]) + 1)


def _filled(dataset: xr.Dataset) -> list[str]:
    """Return the names of the arrays filled part by part: those whose first dims are the outcomes'."""
    dims = dataset[OUTCOME].dims[:2]
    return [str(name) for name, values in dataset.data_vars.items() if values.dims[:2] == dims]

"""A Zarr store that is made empty, filled part by part along its first dim, and gone on with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax import cli, manifest

if TYPE_CHECKING:
    import xarray as xr

OUTCOME = "outcome"  # array that is written last and says which rows are there
NOT_RUN = -1  # its code for rows that are not


class PartStore:
    """A store whose chunks are its parts; the manifest says that a part is whole."""

    def __init__(self, path: Path, command: str) -> None:
        """`command` is said in remarks."""
        self.path, self.command = path, command

    def create(self, dataset: xr.Dataset) -> None:
        """Puts an empty store in place, whole or not at all."""
        from blis_jax.results import save

        save(dataset, self.path, _filled(dataset))

    def resume(self, advice: str, check: Callable[[xr.Dataset], None]) -> xr.Dataset:
        """What there is, unless `check` refuses to go on with it.

        Parts with a damaged or half-written piece count as not run, and this is said. Damage elsewhere
        is refused. A store without a manifest gets one.
        """
        from blis_jax.results import load_or_refuse, open_unchecked

        record = manifest.read(self.path) if self.path.is_dir() else None
        if record is None:
            dataset = load_or_refuse(self.path, advice)
            check(dataset)
            manifest.seal(self.path, _filled(dataset))
            return dataset
        found = manifest.damages(self.path, record)
        if not all(manifest.is_in_a_part(one, record) for one in found):
            raise manifest.refusal(self.path, found, record)
        dataset = open_unchecked(self.path)
        check(dataset)
        self._drop(found)
        dataset.load()
        for rows in self._rows_of(found):
            dataset[OUTCOME].values[rows] = NOT_RUN
        return dataset

    def write(self, first: int, part: Mapping[str, np.ndarray]) -> None:
        """Fills rows from `first` on, the outcomes last; then the manifest counts them in."""
        import zarr

        group: Any = zarr.open_group(self.path, mode="r+")
        written = []
        for name in sorted(part, key=lambda name: name == OUTCOME):
            values, chunk = part[name], group[name].chunks[0]
            group[name][first : first + len(values)] = values
            chunks = range(first // chunk, (first + len(values) - 1) // chunk + 1)
            written += [f"{name}/c/{place}" for place in chunks]
        manifest.reseal(self.path, written)

    def _drop(self, found: Sequence[manifest.Damage]) -> None:
        """Removes damaged pieces, so that nobody can read them, and says so."""
        for one in found:
            (self.path / one.piece).unlink(missing_ok=True)
        for half_written in self.path.rglob("*.partial"):
            half_written.unlink(missing_ok=True)
        if found:
            more = f" and {len(found) - 1} more" if len(found) > 1 else ""
            cli.say(
                self.command,
                f"note: {self.path}: {found[0].piece} {found[0].what}{more}; "
                "the parts concerned are made again",
            )

    def _rows_of(self, found: Sequence[manifest.Damage]) -> list[slice]:
        """The rows of the parts that damaged pieces are of."""
        import zarr

        group: Any = zarr.open_group(self.path, mode="r")
        rows = []
        for array, place in {(p[0], int(p[2])) for p in (one.piece.split("/") for one in found)}:
            chunk = group[array].chunks[0]
            rows.append(slice(place * chunk, (place + 1) * chunk))
        return rows


def _filled(dataset: xr.Dataset) -> list[str]:
    """The arrays that are filled part by part: those with the first dims of the outcomes."""
    dims = dataset[OUTCOME].dims[:2]
    return [str(name) for name, values in dataset.data_vars.items() if values.dims[:2] == dims]

"""A fitted surrogate: means, spreads and intervals at points, gradients, and where not to trust it."""

from __future__ import annotations

import dataclasses
import errno
import itertools
import json
import logging
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import xarray as xr

from blis_jax.errors import ConfigError, closest, reads_store
from blis_jax.files import manifest
from blis_jax.files.atomic_write import replacing, write_json
from blis_jax.files.formats import number_of
from surrogate.columns import (
    REGIONS,
    Domain,
    InputColumn,
    Regions,
    codes_of,
    factors_by_region,
    from_json,
    to_json,
)
from surrogate.data import FAILED
from surrogate.fitting.network import LEVELS, Network, Settings, network_of
from surrogate.fitting.targets import (
    Scales,
    Standard,
    Tables,
    all_raw,
    everything,
    gradient,
    mean_only,
    member_means,
)
from surrogate.levels.model import Levels

CONFIDENCE = 0.9
LARGEST_BATCH, SMALLEST_BATCH = 8192, 64
Points = np.ndarray | Sequence[Mapping[str, Any]] | Any  # also a pandas.DataFrame


@dataclass(frozen=True)
class ConformalScores:
    """Scores of the calibration points, `[output, point]`, and the least sigma of each output, `[output]`."""

    mean_scores: np.ndarray
    run_scores: np.ndarray
    floor: np.ndarray
    region: np.ndarray  # [point], places in REGIONS

    def sigma(self, standard: Standard) -> np.ndarray:
        """Return the sigma in units of which residuals of means are scored, `[point, output]`."""
        return np.asarray(np.hypot(standard.epistemic, self.floor))


@dataclass(frozen=True)
class Surrogate:
    """A deep ensemble with calibrated intervals; points are `[point, parameter]` or mappings.

    `names` and `bounds` are those of the parameters, `outputs` the metrics. In an array a categorical parameter is the
    index of its value in `columns[i].categories`.
    """

    columns: tuple[InputColumn, ...]
    outputs: tuple[str, ...]
    units: tuple[str, ...]
    scales: Scales
    settings: Settings
    params: Any
    calibration: ConformalScores
    domain: Domain
    about: Mapping[str, Any] = field(default_factory=dict)
    regions: Regions | None = None  # None before it is calibrated
    levels: Levels | None = None  # None where nothing is known of seeds outside the pool

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the parameters, in the order of an array's columns."""
        return tuple(column.name for column in self.columns)

    @property
    def bounds(self) -> tuple[tuple[float, float], ...]:
        """Return the range of each parameter in the training data."""
        return tuple((column.low, column.high) for column in self.columns)

    def save(self, path: str | Path) -> None:
        """Write the surrogate as a folder, whole or not at all."""
        document = {
            "columns": json.loads(to_json(self.columns)),
            "outputs": list(self.outputs),
            "units": list(self.units),
            "scales": json.loads(self.scales.to_json()),
            "settings": dataclasses.asdict(self.settings),
            "most_disagreement": self.domain.most_disagreement,
            "about": dict(self.about),
        }
        arrays = {"params": self.params, "calibration": dataclasses.asdict(self.calibration)}
        assert self.regions is not None
        arrays["regions"] = {
            name: np.asarray(value) for name, value in dataclasses.asdict(self.regions).items()
        }
        if self.levels is not None:
            arrays["levels"], document["levels"] = self.levels.arrays(), self.levels.document()
        write_folder(Path(path), document, arrays)

    @staticmethod
    @reads_store("train it again")
    def load(path: str | Path) -> Surrogate:
        """Read a surrogate that `save` wrote."""
        document, arrays = read_folder(Path(path))
        columns = from_json(json.dumps(document["columns"]))
        scores = {name: np.asarray(array) for name, array in arrays["calibration"].items()}
        of_regions = {name: np.asarray(array) for name, array in arrays["regions"].items()}
        regions = Regions(
            int(of_regions["main"]), float(of_regions["threshold"]), of_regions["off_at"]
        )
        levels = Levels.read(arrays["levels"], document["levels"]) if "levels" in arrays else None
        return Surrogate(
            columns, tuple(document["outputs"]), tuple(document["units"]),
            Scales.from_json(json.dumps(document["scales"])), Settings(**document["settings"]),
            jax.tree.map(jnp.asarray, arrays["params"]), ConformalScores(**scores),
            Domain(columns, document["most_disagreement"]), document["about"], regions, levels,
        )  # fmt: skip

    def predict_mean(self, points: Points) -> dict[str, np.ndarray]:
        """Predict the mean over seeds of every output, `[point]` each."""
        inputs = self.inputs(points)
        learned = self._filled(self.raw(self._in_batches(mean_only, inputs)), len(inputs))
        return dict(zip(self.outputs, learned.T, strict=True))

    def predict_members(self, points: Points) -> dict[str, np.ndarray]:
        """Predict the mean over seeds of every output with each member of the ensemble, `[point, member]` each."""
        inputs = self.inputs(points)
        learned = self._filled(self.raw(self._in_batches(member_means, inputs)), len(inputs))
        return dict(zip(self.outputs, np.moveaxis(learned, 1, 0), strict=True))

    def predict(self, points: Points, confidence: float = CONFIDENCE) -> xr.Dataset:
        """Predict means and single runs at points, with their uncertainties and whether the points are in the domain.

        The Dataset has `mean` over seeds with `epistemic_sd`, and its interval from `low` to `high`; for single runs
        `aleatoric_sd`, `quantile`, `run_low` and `run_high`; `in_domain`, and `reason` where that is false.
        """
        if not 0 < confidence < 1:
            raise ConfigError(f"confidence: got {confidence:g}, allowed is between 0 and 1")
        inputs = self.inputs(points)
        return self._dataset(inputs, confidence)

    def gradient(self, points: Points, metric: str) -> np.ndarray:
        """Return derivatives of an output's mean by every parameter, `[point, parameter]`, in their units.

        Zero for categorical parameters. One-sided rules of the simulator, such as whole tokens, are
        smoothed: the derivative is the network's.
        """
        if metric not in self.outputs:
            raise ConfigError(
                f"{metric!r} is no output of the surrogate{closest(metric, self.outputs)}; it has "
                f"{', '.join(self.outputs)}"
            )
        inputs = self.inputs(points)
        place = self.outputs.index(metric)
        if not self.scales.is_learned[place]:
            return np.zeros(inputs.shape, np.float32)
        learned = int(self.scales.is_learned[:place].sum())
        parts = [
            np.asarray(gradient(self._static, learned, self.params, self.scales.arrays(), batch))[
                :count
            ]
            for batch, count in _batches(inputs)
        ]
        return np.concatenate(parts) if parts else np.zeros(inputs.shape, np.float32)

    # --- in standard units ------------------------------------------------------------------------

    def inputs(self, points: Points) -> np.ndarray:
        """Return points as a checked array `[point, parameter]`."""
        rows: Any = points.to_dict("records") if hasattr(points, "to_dict") else points
        if not isinstance(rows, np.ndarray) and len(rows) and isinstance(rows[0], Mapping):
            inputs = codes_of(self.columns, rows)
        else:
            inputs = np.asarray(rows, np.float64)
        if inputs.ndim != 2 or inputs.shape[1] != len(self.columns):
            raise ConfigError(
                f"points of shape {list(inputs.shape)} were given, allowed is [n, "
                f"{len(self.columns)}]: {', '.join(self.names)}"
            )
        return inputs

    def standard(self, inputs: np.ndarray) -> Standard:
        """Return predictions at the inputs in standard units."""
        return Standard(*self._in_batches(everything, inputs))

    @property
    def _static(self) -> tuple[tuple[InputColumn, ...], Network]:
        return self.columns, network_of(self.settings, int(self.scales.is_learned.sum()))

    def _in_batches(self, function: Any, inputs: np.ndarray) -> Any:
        """Call a function of points in batches of few sizes, on all cores; return the joined results."""

        def made(batch: tuple[jax.Array, int]) -> Any:
            """Return the results of one call without the rows that filled up its batch."""
            results = function(self._static, self.params, batch[0])
            return jax.tree.map(lambda leaf: np.asarray(leaf)[: batch[1]], results)

        batches = list(_batches(inputs))
        if len(batches) == 1:
            return made(batches[0])
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            parts = list(pool.map(made, batches))
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)

    def raw(self, standard: Any) -> np.ndarray:
        """Convert standard values, whose second axis is the learned outputs, to the outputs' units."""
        is_log, center, width = (
            np.asarray(array).reshape(-1, *[1] * (standard.ndim - 2))
            for array in self.scales.arrays()
        )
        values = center + width * standard
        values = np.where(is_log, np.exp(np.where(is_log, values, 0.0)), values)
        low, high = (end.reshape(is_log.shape) for end in self.learned_bounds())
        return np.asarray(np.clip(values, low, high))

    def _filled(self, learned: np.ndarray, count: int, is_spread: bool = False) -> np.ndarray:
        """Return all outputs, with the constant outputs between the learned ones; spreads of constant outputs are 0."""
        values = np.empty((count, len(self.outputs), *learned.shape[2:]), np.float32)
        is_learned, place = self.scales.is_learned, 0
        for first, last in _stretches(is_learned):
            if is_learned[first]:
                values[:, first:last] = learned[:, place : place + last - first]
                place += last - first
                continue
            for output in range(first, last):
                values[:, output] = 0.0 if is_spread else self.scales.entries[output].center
        return values

    def _dataset(self, inputs: np.ndarray, confidence: float) -> xr.Dataset:
        regions, scores = self.regions, self.calibration
        assert regions is not None
        mean_reach, run_reach = (
            factors_by_region(each, scores.region, confidence).astype(np.float32)
            for each in (scores.mean_scores, scores.run_scores)
        )
        entries = (*self.scales.arrays(), *self.learned_bounds(), scores.floor)
        is_log, center, width, low, high, floor = (np.asarray(entry)[None, :] for entry in entries)
        main, threshold = np.int32(regions.main), np.float32(regions.threshold)
        tables = Tables(
            is_log, center, width, low, high, floor, mean_reach, run_reach, main, threshold,
            regions.off_at,
        )  # fmt: skip
        outputs, epistemic = self._in_batches(
            lambda static, params, batch: all_raw(static, params, tables, batch), inputs
        )
        is_inside, reasons = self.domain.check(inputs, epistemic, self._failed(outputs["mean"]))
        dims = ("point", "output")
        dataset = xr.Dataset()
        region = outputs.pop("region")
        for name, learned in outputs.items():
            values = self._filled(learned, len(inputs), name.endswith("_sd"))
            dataset[name] = ((*dims, "level")[: values.ndim], values)
        dataset["in_domain"] = ("point", is_inside)
        dataset["reason"] = ("point", reasons)
        dataset["region"] = ("point", np.array(REGIONS)[region])
        dataset.coords["output"] = list(self.outputs)
        dataset.coords["unit"] = ("output", list(self.units))
        dataset.coords["level"] = list(LEVELS)
        dataset.attrs["confidence"] = confidence
        return dataset

    def learned_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the least and the greatest possible value of each learned output."""
        kept = [scale for scale in self.scales.entries if not scale.is_constant]
        low = [-np.inf if scale.low is None else scale.low for scale in kept]
        high = [np.inf if scale.high is None else scale.high for scale in kept]
        return np.array(low, np.float32), np.array(high, np.float32)

    def _failed(self, mean: np.ndarray) -> np.ndarray | None:
        """Return the predicted share of runs that do not come to their end; None if all runs of the data did."""
        if FAILED not in self.outputs:
            return None
        place = self.outputs.index(FAILED)
        if not self.scales.is_learned[place]:
            return None
        return np.asarray(mean[:, int(self.scales.is_learned[:place].sum())])


def _stretches(flags: np.ndarray) -> list[tuple[int, int]]:
    """Return the first index and the last index + 1 of every stretch of equal flags."""
    ends = [0, *(np.flatnonzero(np.diff(flags.astype(int))) + 1).tolist(), len(flags)]
    return [(int(first), int(last)) for first, last in itertools.pairwise(ends)]


def _batches(inputs: np.ndarray) -> Iterator[tuple[jax.Array, int]]:
    """Batches of a few sizes, so that few programs are compiled; the last point fills them up."""
    for first in range(0, max(len(inputs), 1), LARGEST_BATCH):
        batch = np.asarray(inputs[first : first + LARGEST_BATCH], np.float32)
        count = len(batch)
        size = min(max(1 << max(count - 1, 0).bit_length(), SMALLEST_BATCH), LARGEST_BATCH)
        padded = np.zeros((size, inputs.shape[1]), np.float32)
        padded[:count] = batch
        padded[count:] = batch[-1:] if count else 0.0
        yield jnp.asarray(padded), count


# --- a surrogate as a folder: arrays as an Orbax checkpoint, the rest as JSON ---------------------


SPARE_BYTES = 2**18  # that a checkpoint takes beside its arrays
KIND, ABOUT, ARRAYS = "surrogate", "surrogate.json", "arrays"
VERSION = number_of(KIND)
_NEEDED = ("columns", "outputs", "units", "scales", "settings", "most_disagreement", "about")


def write_folder(path: Path, document: Mapping[str, Any], arrays: Any) -> None:
    """Write the folder whole or not at all; `document` describes the surrogate."""
    with replacing(path) as written:
        written.mkdir()
        save_arrays(written / ARRAYS, arrays)
        write_json(written / ABOUT, {"kind": KIND, "version": VERSION, **document})
        manifest.seal(written)


@reads_store("train it again")
def read_folder(path: Path) -> tuple[dict[str, Any], Any]:
    """Load document and arrays of the folder.

    Raises:
        ConfigError: the folder is no surrogate, or a piece of it is damaged.
    """
    is_checked = manifest.check(path, "train it again")
    document, arrays = read_about(path), load_arrays(path / ARRAYS)
    if not is_checked:
        manifest.remark(path)
    return document, arrays


def read_about(path: Path) -> dict[str, Any]:
    """Read the document of a surrogate's folder.

    Raises:
        ConfigError: the folder is no surrogate, is damaged, or was written by another version.
    """
    try:
        document = json.loads((path / ABOUT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        document = None
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise ConfigError(f"{path} is no surrogate; give a folder that surrogate.train wrote")
    if document.get("version") != VERSION:
        raise ConfigError(f"{path} was written by another version; train it again")
    for name in _NEEDED:
        if document.get(name) is None:
            raise ConfigError(f"{path} is damaged ({name} is missing); train it again")
    return document


def save_arrays(path: Path, tree: Any) -> None:
    """Save a tree of arrays as an Orbax checkpoint.

    Raises:
        OSError: the disk is full or broken.
    """
    _need_room(path.parent, tree)
    log = logging.getLogger("absl")  # Orbax logs a failure with its whole stack, and raises it too
    was_disabled, log.disabled = log.disabled, True
    try:
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(path.absolute(), tree)
            checkpointer.wait_until_finished()
    except Exception as error:  # whatever a full or broken disk makes Orbax raise
        reason = re.sub(r"\s*\[.*|\s*\(.*", "", str(error).splitlines()[0].rpartition(": ")[2])
        raise OSError(errno.EIO, reason or type(error).__name__, str(path)) from None
    log.disabled = was_disabled  # not after a failure, of which further threads may still log


def _need_room(folder: Path, tree: Any) -> None:
    """Fail like any writer if the disk is full; Orbax's threads would go on and fill pages with errors."""
    size = sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(tree)) + SPARE_BYTES
    with tempfile.TemporaryFile(dir=folder) as probe:
        probe.writelines(bytes(SPARE_BYTES) for _ in range(0, size, SPARE_BYTES))


def load_arrays(path: Path, like: Any = None) -> Any:
    """Load the tree in a checkpoint; with the types of `like` if that is given."""
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(path.absolute(), like)

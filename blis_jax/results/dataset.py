"""Runs as labelled xarray Datasets with units and provenance, saved whole as Zarr or NetCDF."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from blis_jax.cluster.config import ClusterConfig
from blis_jax.cluster.instance_groups import has_cpu_tier
from blis_jax.cluster.setting_values import all_values
from blis_jax.core.types import CLASS_NAMES
from blis_jax.errors import ConfigError
from blis_jax.files import manifest
from blis_jax.files.atomic_write import replacing
from blis_jax.lazy import xarray as xr
from blis_jax.metrics import kv as kv_metrics
from blis_jax.metrics.reference import instance_name
from blis_jax.metrics.run_summary import RunSummary
from blis_jax.metrics.scalars import KINDS, OWN_METRICS, class_summary, evaluate, lookup
from blis_jax.metrics.summaries import ALL, LATENCIES, PERCENTS, SloTargets, Window
from blis_jax.records import invariants
from blis_jax.records.record import BLOCK_LEVEL, NO_EVICTION, RunRecord
from blis_jax.results.schema import RUNS, new_dataset, outcome_attributes, unit_of, upgraded
from blis_jax.results.schema import Provenance as Provenance

RESERVED_DIMS = (
    "slo_class", "quantile", "invariant", "instance", "request", "ttft_part", "e2e_part",
)  # fmt: skip
FORMATS = (".zarr", ".nc")
TABLE_FORMATS = (".csv", *FORMATS)
KV_MODELS = (NO_EVICTION, BLOCK_LEVEL)
RUN_METRICS = tuple(
    name
    for name in OWN_METRICS
    if (name == "jain_fairness" or not lookup(name)[0].has_classes) and not name.startswith("itl_")
)
ALIKE = {  # attributes in which sweeps of the same requests do not differ
    "seeds": "seeds",
    "spec": "the workload",
    "random_stream": "who draws the requests",
    "slo_targets": "SLO targets",
    "measure": "what is measured",
    "profile": "the revision of BLIS",
}
COUNT_FIELDS = ("num_iterations", "num_open_ties", "num_repairs")


def to_dataset(
    records: Sequence[RunRecord],
    coords: Mapping[str, Sequence[Any]],
    provenance: Provenance,
    targets: SloTargets | None = None,
    window: Window | None = None,
    has_cpu_tier: bool | Sequence[bool] = False,
) -> xr.Dataset:
    """Put the figures of many runs, each with its unit, into one labelled Dataset.

    Its dims are those of `coords`, SLO classes and quantiles, and instances. The records come in row-major order of
    `coords`, the last name changing fastest, e.g. of {"strategy": …, "seed": …}. `targets` are limits in ms by class;
    `has_cpu_tier`, whether a CPU tier is configured, is one value for all records or one for each.
    """
    shape = _shape(records, coords)
    tiers = _one_each(has_cpu_tier, records)
    classes = _classes(records)
    about = {
        "measured_window_us": json.dumps(dataclasses.astuple(window or Window())),
        "slo_targets": _targets_text(targets or SloTargets()),
    }
    labels: dict[str, Any] = {name: (name, np.asarray(each)) for name, each in coords.items()}
    labels |= {"slo_class": list(classes), "quantile": [percent / 100 for percent in PERCENTS]}
    dataset = new_dataset(RUNS, provenance, labels, about)
    rows = _Rows(dataset, records, tuple(coords), shape)
    rows.add_class_figures(classes, targets, window)
    rows.add_run_metrics(window)
    rows.add_kv_figures(tiers)
    rows.add_checks()
    return dataset


def summaries_to_dataset(
    rows: Sequence[Sequence[object]], seeds: Sequence[int], name: str = "point"
) -> xr.Dataset:
    """Return the metrics of summaries, `rows[point][seed]`, as xarray `[point, seed]` with units.

    Args:
        rows: the runs' summaries by `figures_of`; `[runs]` for the runs of `over_seeds`.
        seeds: the seeds of the columns.
        name: the name of the first dimension.

    Raises:
        ConfigError: the summaries have no metrics.
    """
    runs = [[run if isinstance(run, RunSummary) else None for run in row] for row in rows]
    whole = [run for row in runs for run in row if run is not None]
    names = list(dict.fromkeys(metric for run in whole for metric in run.metrics))
    if not names:
        raise ConfigError(
            "the runs have no metrics to label; give summarize=figures_of([...]) with names of metrics"
        )
    dims = (name, "seed")

    def values(metric: str) -> list[list[float]]:
        return [
            [run.metrics.get(metric, math.nan) if run else math.nan for run in row] for row in runs
        ]

    dataset = xr.Dataset(
        {metric: (dims, values(metric)) for metric in names},
        {name: list(range(len(runs))), "seed": list(seeds)},
    )
    for metric in names:
        about = lookup(metric)[0]
        dataset[metric].attrs = {"long_name": about.axis, "units": about.unit}
    dataset["outcome"] = dims, [[run.outcome.name if run else "" for run in row] for row in runs]
    return dataset


def run_dataset(record: RunRecord, config: ClusterConfig | None = None) -> xr.Dataset:
    """Return the figures of one run, over SLO classes, quantiles and instances; see `RunRecord.to_dataset`."""
    dataset = to_dataset(
        [record],
        {"run": [0]},
        Provenance(config={} if config is None else all_values(config)),
        has_cpu_tier=config is not None and has_cpu_tier(config),
    )
    return dataset.isel(run=0, drop=True)


def _one_each(values: bool | Sequence[bool], records: Sequence[RunRecord]) -> list[bool]:
    """Return one value per record; a single value is repeated for all."""
    each = [values] * len(records) if isinstance(values, bool) else list(values)
    if len(each) != len(records):
        raise ConfigError(
            f"{len(each)} CPU tiers for {len(records)} records; give one for all or one for each"
        )
    return each


@dataclasses.dataclass(frozen=True)
class _Rows:
    """Adds figures of runs, given in row-major order of `dims`, to a dataset."""

    dataset: xr.Dataset
    records: Sequence[RunRecord]
    dims: tuple[str, ...]
    shape: tuple[int, ...]

    def add(self, name: str, values: Sequence[Any] | np.ndarray, unit: str, *further: str) -> None:
        """Add a variable with one row per record, over the dims and further ones."""
        table = np.asarray(values)
        shaped = table.reshape(*self.shape, *table.shape[1:])
        self.dataset[name] = ((*self.dims, *further), shaped, {"units": unit})

    def add_codes(self, name: str, codes: Sequence[int], meanings: Mapping[str, Any]) -> None:
        """Add a coordinate with a code per record; `meanings` are attributes that explain the codes."""
        numbers = np.array(codes, np.int8).reshape(self.shape)
        self.dataset.coords[name] = (self.dims, numbers, meanings)

    def add_class_figures(
        self, classes: Sequence[str], targets: SloTargets | None, window: Window | None
    ) -> None:
        """Add counts, rates and latencies of each SLO class; a run without the class has counts of 0 and NaN."""
        summaries = [class_summary(record, targets, window) for record in self.records]
        missing = dict.fromkeys(summaries[0][ALL], float("nan"))
        missing |= {name: 0 for name in missing if name.startswith("num_")}
        rows = [[summary.get(name, missing) for name in classes] for summary in summaries]
        for name in missing:
            if not name.startswith(LATENCIES):
                values = [[entry[name] for entry in row] for row in rows]
                self.add(name, values, unit_of(name), "slo_class")
        for latency in LATENCIES:
            mean, *names = (f"{latency}_{kind}_ms" for kind in KINDS)
            self.add(mean, [[entry[mean] for entry in row] for row in rows], "ms", "slo_class")
            quantiles = [[[entry[name] for name in names] for entry in row] for row in rows]
            self.add(f"{latency}_ms", quantiles, "ms", "slo_class", "quantile")

    def add_run_metrics(self, window: Window | None) -> None:
        """Add the figures that cover a whole cluster."""
        mean, *quantile_names = (f"itl_{kind}_ms" for kind in KINDS)
        plain = (*RUN_METRICS, mean)
        rows = [evaluate(each, (*plain, *quantile_names), window=window) for each in self.records]
        for name in plain:
            self.add(name, [row[name] for row in rows], unit_of(name))
        self.add(
            "itl_ms", [[row[name] for name in quantile_names] for row in rows], "ms", "quantile"
        )

    def add_kv_figures(self, tiers: Sequence[bool]) -> None:
        """Add the figures of KV memory: `<figure>` of the cluster, `instance_<figure>` of each instance.

        For runs with fewer instances than the largest cluster, the missing instances are NaN.
        """
        clusters = [kv_metrics.cluster_figures(record) for record in self.records]
        tables = [kv_metrics.instance_figures(record) for record in self.records]
        size = max(len(record.instances.step_count) for record in self.records)
        self.dataset.coords["instance"] = [instance_name(row) for row in range(size)]
        for name, long_name in kv_metrics.FIGURES.items():
            of_instance = np.full((len(self.records), size), np.nan)
            for row, table in enumerate(tables):
                of_instance[row, : len(table[name])] = table[name]
            self.add(name, [entry[name] for entry in clusters], unit_of(name))
            self.add(f"instance_{name}", of_instance, unit_of(name), "instance")
            for variable in (name, f"instance_{name}"):
                self.dataset[variable].attrs["long_name"] = long_name
        models = [KV_MODELS.index(record.kv_model) for record in self.records]
        states = [
            kv_metrics.CPU_TIERS.index(kv_metrics.cpu_tier(record, has_tier))
            for record, has_tier in zip(self.records, tiers, strict=True)
        ]
        self.add_codes("kv_model", models, {"flag_meanings": " ".join(KV_MODELS)})
        self.add_codes("cpu_tier", states, {"flag_meanings": " ".join(kv_metrics.CPU_TIERS)})

    def add_checks(self) -> None:
        """Add outcome, counts of steps, ties and repairs, and violations of each invariant."""
        codes = [int(record.outcome) for record in self.records]
        self.add_codes("outcome", codes, outcome_attributes())
        for name in COUNT_FIELDS:
            self.add(name, [getattr(record, name) for record in self.records], "1")
        counts = [
            invariants.violations(record) | record.invariant_failures for record in self.records
        ]
        names = list(dict.fromkeys(name for row in counts for name in row))
        self.dataset.coords["invariant"] = names
        violated = [[row.get(name, 0) for name in names] for row in counts]
        self.add("invariant_violations", violated, "1", "invariant")


def save(dataset: xr.Dataset, path: str | Path, filled: Sequence[str] = ()) -> None:
    """Write a Dataset atomically: Zarr 3 for `.zarr`, NetCDF for `.nc`, with hashes by which `load` checks its pieces.

    `filled` names the arrays of a Zarr store that will be filled later, part by part.
    """
    path = Path(path)
    suffix = checked_suffix(path)
    with replacing(path) as written:
        if suffix == ".zarr":
            variable_length = _with_text(dataset, object)  # Zarr 3 specifies no other text
            with warnings.catch_warnings():
                # readers find all arrays by one file; a reader without the extension looks at each
                warnings.filterwarnings("ignore", "Consolidated metadata is currently not part")
                variable_length.to_zarr(written, zarr_format=3, consolidated=True)
            manifest.seal(written, filled, str(dataset.attrs.get("command", "")))
        else:
            # HDF5 ends the process where the disk is full; made in memory, a failure is Python's
            written.write_bytes(dataset.to_netcdf(engine="h5netcdf"))
            manifest.seal_file(written)


def save_table(dataset: xr.Dataset, path: str | Path) -> None:
    """Write a Dataset of one dim: as one line per entry for `.csv`, else like `save`."""
    path = Path(path)
    if checked_suffix(path, TABLE_FORMATS) != ".csv":
        save(dataset, path)
        return
    with replacing(path) as written:
        dataset.to_dataframe().to_csv(written, columns=list(dataset.variables), index=False)


def load(path: str | Path) -> xr.Dataset:
    """Read a saved Dataset into memory; raise a ConfigError that names a damaged piece."""
    path = Path(path)
    if checked_suffix(path) == ".nc":
        is_checked = path.is_file() and manifest.check_file(path)
        dataset = upgraded(xr.load_dataset(path, engine="h5netcdf"))
    else:
        is_checked = manifest.check(path)
        dataset = open_unchecked(path).load()
    if not is_checked:
        manifest.remark(path)
    return dataset


def open_unchecked(path: Path) -> xr.Dataset:
    """Return a Zarr store whose arrays are read lazily and not checked."""
    return upgraded(_with_text(xr.open_dataset(path, engine="zarr", consolidated=False), str))


def load_or_refuse(path: Path, advice: str) -> xr.Dataset:
    """Return a saved Dataset; raise a ConfigError that ends with `advice` if it is damaged."""
    try:
        with warnings.catch_warnings():  # zarr warns of an array that lost its metadata
            warnings.filterwarnings("ignore", "Object at .* is not recognized")
            return load(path)
    except ConfigError:
        raise
    except Exception as error:  # whatever a damaged store makes its reader raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(f"{path} cannot be read ({reason}); {advice}") from None


def load_kind(path: str | Path, kind: str, wanted: str) -> xr.Dataset:
    """Return a saved Dataset with this attribute `kind`; raise a ConfigError for any other file."""
    path = Path(path)
    if not path.exists():
        raise ConfigError(f"{path} does not exist; give {wanted}")
    dataset = load_or_refuse(path, "make it again")
    if dataset.attrs.get("kind") != kind:
        raise ConfigError(f"{path} is something else; give {wanted}")
    return dataset


def refuse_unlike(paths: Sequence[Path], sweeps: Sequence[xr.Dataset]) -> None:
    """Refuse saved sweeps whose runs differ in their requests, or in how they are measured.

    Raises:
        ConfigError: two sweeps differ in one of the attributes `ALIKE`.
    """
    for path, sweep in zip(paths[1:], sweeps[1:], strict=True):
        for name, words in ALIKE.items():
            if sweeps[0].attrs.get(name) != sweep.attrs.get(name):
                raise ConfigError(
                    f"{path} and {paths[0]} differ in {words}, so their runs are not pairs; sweep one of them again"
                )


def _with_text(dataset: xr.Dataset, text_type: type) -> xr.Dataset:
    dataset = dataset.copy()
    for name, values in dataset.variables.items():
        if values.dtype.kind in "UOT":
            dataset[name] = (values.dims, np.array(values.values.tolist(), text_type), values.attrs)
    return dataset


def checked_suffix(path: Path, formats: Sequence[str] = FORMATS) -> str:
    """Return the ending of a path; refuse an unknown format, or one whose package is not installed."""
    if path.suffix not in formats:
        endings = f"{', '.join(formats[:-1])} or {formats[-1]}"
        raise ConfigError(f"{path.name!r} does not say its format; end it in {endings}")
    if path.suffix == ".nc" and importlib.util.find_spec("h5netcdf") is None:
        raise ConfigError(f"{path.name!r} needs h5netcdf; install blis-jax[export] or use .zarr")
    return path.suffix


def _shape(records: Sequence[RunRecord], coords: Mapping[str, Sequence[Any]]) -> tuple[int, ...]:
    reserved = [name for name in coords if name in RESERVED_DIMS]
    if reserved:
        raise ConfigError(
            f"{reserved[0]!r} is a dim of the results; give the coordinate another name"
        )
    shape = tuple(len(labels) for labels in coords.values())
    if not records or len(records) != math.prod(shape):
        sizes = ", ".join(f"{name}: {len(labels)}" for name, labels in coords.items())
        raise ConfigError(
            f"{len(records)} records do not fill the coordinates ({sizes}); "
            "give one record for each combination, the last coordinate changing fastest"
        )
    return shape


def _classes(records: Sequence[RunRecord]) -> tuple[str, ...]:
    codes = {code for record in records for code in np.unique(record.requests.slo_class).tolist()}
    return (ALL, *(CLASS_NAMES[code] for code in sorted(codes)))


def _targets_text(targets: SloTargets) -> str:
    by_class = {name: vars(target) for name, target in targets.by_class.items()}
    return json.dumps(by_class | {"otherwise": vars(targets.otherwise)})

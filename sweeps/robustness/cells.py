"""The regimes of a robustness map: axes, their values, and the cells that are run.

A cell is one combination of values, one of every axis. All strategies get the cell's engine settings in place of
their own, so that they differ in policies alone.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.cluster.config import ClusterConfig
from blis_jax.cluster.step_times import model_of
from blis_jax.commands.values import number_within
from blis_jax.errors import ConfigError, closest
from blis_jax.lazy import stats
from sweeps.runs.axes import StudyAxis
from sweeps.strategies.space import sobol_shares

if TYPE_CHECKING:
    from blis_jax.traces.source import TraceSource

DESIGNS = ("sobol", "latin-hypercube", "grid")
DEFAULT_CELLS = 1024
MOST_CELLS = 100_000
MOST_VALUES = 64  # of one axis
LARGEST_CV = 10.0  # beyond it BLIS draws exponential gaps for a gamma law
PUBLISHED_STEP_US = ClusterConfig().beta_coeffs[0]

# an axis of the map has a shorter name than the setting, which is what the option is called
_OPTIONS = {"kv_blocks": "total-kv-blocks", "instances": "num-instances"}
_SHORT_HEADINGS = {"arrival_cv": "CV of arrivals", "step_constant": "fixed step cost"}
_UNIT_WORDS = {"us": "µs", "requests/s": "requests/s", "blocks per instance": "per instance"}

Place = Mapping[str, Any]  # a cell's value by axis


@dataclass(frozen=True)
class MapAxisKind:
    """The definition of an axis: its name, unit and default values, and its value in the ledger's regime."""

    name: str
    unit: str
    heading: str
    defaults: tuple[Any, ...]
    published: Any
    low: float = 0.0  # least value
    high: float = math.inf
    is_whole: bool = False

    @property
    def option(self) -> str:
        """Return the axis's name on the command line."""
        return "--" + _OPTIONS.get(self.name, self.name.replace("_", "-"))

    @property
    def is_text(self) -> bool:
        """Return whether the axis has texts as values, which have no order."""
        return isinstance(self.published, str)

    @property
    def title(self) -> str:
        """Return the axis's title in tables and pictures, with its unit."""
        unit = _UNIT_WORDS.get(self.unit)
        return f"{self._short} ({unit})" if unit else self._short

    def said(self, bound: str) -> str:
        """Return a bound or a value of the axis as part of a sentence, such as `arrival rate ≥ 1,500 requests/s`."""
        return " ".join(filter(None, (self._short, bound, _UNIT_WORDS.get(self.unit))))

    @property
    def _short(self) -> str:
        return _SHORT_HEADINGS.get(self.name, self.heading)


KINDS = (
    MapAxisKind(
        "rate", "requests/s", "arrival rate", (500.0, 1000.0, 1500.0, 2000.0, 2500.0, 3000.0),
        2000.0, low=1e-3, high=1e6,
    ),
    MapAxisKind(
        "arrival_cv", "1", "coefficient of variation of the gaps between a client's arrivals",
        (1.0, 2.0, 3.5), 2.0, low=0.01, high=LARGEST_CV,
    ),
    MapAxisKind(
        "kv_blocks", "blocks per instance", "KV blocks", (2000, 2500, 3000, 5000, 10000, 132139),
        132139, low=1, high=2**31 - 2, is_whole=True,
    ),
    MapAxisKind(
        "kv_cpu_blocks", "blocks per instance", "KV blocks of the CPU tier", (0, 2000, 44000),
        44000, high=2**31 - 2, is_whole=True,
    ),
    MapAxisKind("instances", "1", "instances", (4, 8, 16), 8, low=1, high=64, is_whole=True),
    MapAxisKind(
        "shape", "", "workload shape",
        ("mixed", "nonorthogonal", "asymmetric", "multiprefix", "multiturn"), "mixed",
    ),
    MapAxisKind(
        "step_constant", "us", "fixed cost of a step, beta_0",
        (2000.0, 4000.0, PUBLISHED_STEP_US, 14000.0), PUBLISHED_STEP_US, high=1e8,
    ),
)  # fmt: skip
# axes that a map has only if they are given: without them the strategies keep what they have
OPTIONAL = (
    MapAxisKind(
        "signal_age", "us", "age of the router's signals of load and KV", (0,), 0, high=1e9,
        is_whole=True,
    ),
    MapAxisKind(
        "lora_adapter_capacity", "adapters per instance", "LoRA adapters that an instance holds", (4,), 4,
        low=1, high=4096, is_whole=True,
    ),
    MapAxisKind(
        "adapter_zipf", "1", "exponent by which the popularity of LoRA adapters falls", (1.0,), 1.0, high=10,
    ),
)  # fmt: skip
BY_NAME = {kind.name: kind for kind in (*KINDS, *OPTIONAL)}
NAMES = tuple(BY_NAME)


def kinds_in(names: Container[Any]) -> tuple[MapAxisKind, ...]:
    """Return the axes of a map or a place: all that every map has, and the optional ones among `names`."""
    return (*KINDS, *(kind for kind in OPTIONAL if kind.name in names))


def _axis(kind: MapAxisKind, values: tuple[Any, ...]) -> StudyAxis:
    """Return an axis; its reference is the value nearest to the ledger's (of texts: the ledger's, else the first)."""
    if kind.is_text:
        return StudyAxis(
            kind.name, values, kind.published if kind.published in values else values[0]
        )
    nearest = min(values, key=lambda value: (abs(value - kind.published), value))
    return StudyAxis(kind.name, values, nearest)


def make_axes(texts: Mapping[str, str]) -> tuple[StudyAxis, ...]:
    """Return every axis, with its values from `texts` (`a,b,…` by name) or its defaults; optional axes if given."""
    unknown = [name for name in texts if name not in BY_NAME]
    if unknown:
        raise ConfigError(
            f"axis {unknown[0]!r} is unknown; there are {', '.join(NAMES)}"
            f"{closest(unknown[0], NAMES)}"
        )
    return tuple(
        _axis(kind, _values(kind, texts[kind.name]) if kind.name in texts else kind.defaults)
        for kind in kinds_in(texts)
    )


PACES = (0.5, 0.75, 1.0, 1.5, 2.0)  # of a trace, in multiples of its own rate


def trace_axes(texts: Mapping[str, str], trace: TraceSource) -> tuple[StudyAxis, ...]:
    """Return every axis for a trace: rates around its own, its own burstiness, and the trace as the only shape."""
    rate = trace.aggregate_rate
    if rate is None:
        raise ConfigError(f"{trace.path}: all requests arrive at once, so they have no rate")
    gaps = np.diff(trace.trace.rows.arrival_us)
    cv = float(f"{gaps.std() / max(gaps.mean(), 1e-9):.3g}")
    of_trace: dict[
        str, tuple[Any, tuple[Any, ...]]
    ] = {  # the trace's own value, and those looked at
        "shape": (str(trace.path), (str(trace.path),)),
        "arrival_cv": (cv, (cv,)),
        "rate": (rate, tuple(float(f"{pace * rate:.4g}") for pace in PACES)),
    }
    axes = []
    for axis in make_axes(texts):
        if axis.name in of_trace:
            published, usual = of_trace[axis.name]
            values = axis.values if axis.name == "rate" and "rate" in texts else usual
            axis = _axis(dataclasses.replace(BY_NAME[axis.name], published=published), values)
        axes.append(axis)
    return tuple(axes)


def _values(kind: MapAxisKind, text: str) -> tuple[Any, ...]:
    values = [_value(kind, part.strip()) for part in text.split(",")]
    for value in values:
        if values.count(value) > 1:
            raise ConfigError(f"{kind.option}: {value!r} is given twice; give each value once")
    if len(values) > MOST_VALUES:
        raise ConfigError(
            f"{kind.option}: {len(values)} values are given, allowed are {MOST_VALUES}"
        )
    return tuple(values if kind.is_text else sorted(values))


def _value(kind: MapAxisKind, text: str) -> Any:
    if kind.is_text:
        if not text:
            raise ConfigError(
                f"{kind.option}: a value is empty; write for instance mixed,multiturn"
            )
        return text
    return number_within(kind.option, text, kind.low, kind.high, kind.is_whole)


def grid_size(axes: Sequence[StudyAxis]) -> int:
    """Return the number of combinations of axis values."""
    return math.prod(len(axis.values) for axis in axes)


def reference_place(axes: Sequence[StudyAxis], text: str = "") -> dict[str, Any]:
    """Return the ledger's regime, or the nearest on the axes, with values replaced as `NAME=VALUE,…` says.

    Raises:
        ConfigError: a part has another form, or a value is not on its axis.
    """
    place = {axis.name: axis.reference for axis in axes}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, equals, value = part.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or name not in BY_NAME:
            raise ConfigError(
                f"--reference: {part!r} is not NAME=VALUE with a NAME of {', '.join(NAMES)}"
            )
        place[name] = _value(BY_NAME[name], value.strip())
        values = next(axis.values for axis in axes if axis.name == name)
        if place[name] not in values:
            allowed = ", ".join(
                f"{entry:g}" if not isinstance(entry, str) else entry for entry in values
            )
            raise ConfigError(
                f"--reference: {name} {value.strip()} is not on its axis, which has {allowed}"
            )
    return place


def make_cells(
    axes: Sequence[StudyAxis], design: str, num_cells: int, seed: int, reference: Place
) -> list[dict[str, Any]]:
    """Return distinct cells, the reference among them: all combinations, or `num_cells` that fill the space evenly.

    Raises:
        ConfigError: too many cells, or fewer than one.
    """
    if not 1 <= num_cells <= MOST_CELLS:
        raise ConfigError(f"--cells must be between 1 and {MOST_CELLS}, got {num_cells}")
    total = grid_size(axes)
    if design == "grid" or num_cells >= total:
        if total > MOST_CELLS:
            raise ConfigError(
                f"the axes have {total} combinations, allowed are {MOST_CELLS}; give fewer values, "
                "or --design sobol with --cells"
            )
        levels = list(itertools.product(*(range(len(axis.values)) for axis in axes)))
    else:
        levels = _sampled(axes, design, num_cells, seed, reference)
    names = [axis.name for axis in axes]
    return [
        dict(zip(names, (axis.values[at] for axis, at in zip(axes, row, strict=True)), strict=True))
        for row in levels
    ]


def _sampled(
    axes: Sequence[StudyAxis], design: str, num_cells: int, seed: int, reference: Place
) -> list[tuple[int, ...]]:
    """Return index tuples of a space-filling sample without repeats; the reference replaces the last of them."""
    sizes = np.array([len(axis.values) for axis in axes])
    sampled: dict[tuple[int, ...], None] = {}
    num_points = 1 << max(num_cells - 1, 1).bit_length()
    round_index = 0
    while len(sampled) < num_cells:
        points = _points(design, len(sizes), num_points, seed, round_index)
        levels = np.minimum((points * sizes).astype(int), sizes - 1)
        for row in levels.tolist():
            if len(sampled) < num_cells:
                sampled.setdefault(tuple(row))
        num_points, round_index = 2 * num_points, round_index + 1
    wanted = tuple(axis.values.index(reference[axis.name]) for axis in axes)
    rows = list(sampled)
    return rows if wanted in sampled else [*rows[:-1], wanted]


def _points(design: str, num_axes: int, count: int, seed: int, round_index: int) -> np.ndarray:
    """Return points in the unit cube; a longer Sobol sequence begins with the points of a shorter one."""
    if design == "sobol":
        return sobol_shares(num_axes, count, seed)
    rng = np.random.default_rng([seed, round_index])
    hypercube: np.ndarray = stats.qmc.LatinHypercube(num_axes, rng=rng).random(count)
    return hypercube


def config_in(config: ClusterConfig, place: Place) -> ClusterConfig:
    """Return the configuration with the cell's memory, instances and step constant; with the age of signals and the
    room for adapters if the cell has them.

    Raises:
        ConfigError: the latency model has no step constant.
    """
    if model_of(config).sizes is not None:
        raise ConfigError(
            f"latency_model {config.latency_model} has no fixed cost of a step that could be varied; "
            "use blackbox"
        )
    if "signal_age" in place:
        age = place["signal_age"]
        config = config.replace(load_refresh_interval=age, snapshot_refresh_interval=age)
    if "lora_adapter_capacity" in place:
        config = config.replace(lora_adapter_capacity=place["lora_adapter_capacity"])
    return config.replace(
        total_kv_blocks=place["kv_blocks"],
        kv_cpu_blocks=place["kv_cpu_blocks"],
        num_instances=place["instances"],
        beta_coeffs=(place["step_constant"], *config.beta_coeffs[1:]),
    )

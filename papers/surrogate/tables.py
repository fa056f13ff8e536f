"""The tables of `papers.surrogate` in Markdown, one function a part."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from blis_jax.lazy import Module
from blis_jax.lazy import pandas as pd
from blis_jax.reports import render
from blis_jax.reports.findings import Answer
from blis_jax.reports.render import table_lines
from blis_jax.statistics.paired import holm

if TYPE_CHECKING:
    from surrogate.levels import fit as fitted_levels
    from surrogate.levels import model as levels_model
else:
    fitted_levels = Module("surrogate.levels.fit")
    levels_model = Module("surrogate.levels.model")

# --- the spaces that surrogates are fitted to, and how much of each is simulated -----------------


BASELINE, OWN_SEEDS = "iter00_baseline", 32
FIRST_COMMON_SEED = 2_000_000  # of the sets that all of some points share; in no other dataset
OF_SEEDS = ("any_seeds", "common_seeds", "levels")  # of a space with points on seeds of their own


@dataclass(frozen=True)
class PaperSpace:
    """A strategy's space with the sizes of its dataset and of its ensemble."""

    title: str
    strategy: str
    points: int
    calibration: int
    test: int
    seeds: int
    train_seeds: int
    other_points: int = 0
    steps: int = 8000
    members: int = 5
    width: int = 64
    branch: int = 0  # points at which a limit is off, to calibrate and to test
    own: tuple[int, ...] = ()  # on seeds of their own: train, calibration, test, branch
    common: tuple[int, int] = (0, 0)  # further test points, and seeds that all of them share
    random_state: int = 0

    def dataset_arguments(self, path: str, scale: float) -> list[str]:
        """Return the options for `blis-jax dataset`; `scale` makes everything smaller."""
        sizes = {
            "points": self.points, "calibration": self.calibration, "test": self.test,
            "other-points": self.other_points, "branch": self.branch,
        }  # fmt: skip
        counts = _scaled(sizes, scale)
        counts["seeds"] = max(round(self.seeds * min(1.0, 4 * scale)), 4)
        counts["train-seeds"] = min(self.train_seeds, counts["seeds"])
        return [*self._words(counts), "--output", path]

    def own_arguments(self, path: str, scale: float) -> list[str]:
        """Return the options for `blis-jax dataset` for the points on seeds of their own."""
        sizes = dict(zip(("points", "calibration", "test", "branch"), self.own, strict=True))
        num_seeds = max(round(OWN_SEEDS * min(1.0, 4 * scale)), 2)
        counts = _scaled(sizes, scale) | {"own-seeds": num_seeds}
        if scale < 1:
            counts["seeds"] = 2 * num_seeds
        return [*self._words(counts), "--output", path]

    def common_arguments(self, path: str, scale: float) -> list[str]:
        """Return the options for `blis-jax dataset` for points that share sets of seeds; it needs 16
        points of each role.
        """
        counts = _scaled({"points": 16, "calibration": 16, "test": self.common[0]}, scale)
        counts["seeds"] = max(round(self.common[1] * min(1.0, 4 * scale)), 4)
        counts |= {"train-seeds": 1, "first-seed": FIRST_COMMON_SEED}
        return [*self._words(counts, self.random_state + 1), "--output", path]

    def _words(self, counts: Mapping[str, int], random_state: int | None = None) -> list[str]:
        words = [text for name, count in counts.items() for text in (f"--{name}", str(count))]
        state = self.random_state if random_state is None else random_state
        words += ["--random-state", str(state)] if state else []
        return [self.strategy, *words, *(["--baseline", BASELINE] if self.own else [])]

    def train_arguments(self, data: str, path: str, scale: float) -> list[str]:
        """Return the options for `blis-jax surrogate train`."""
        steps = max(round(self.steps * scale), 50)
        sizes = ["--members", str(self.members), "--width", str(self.width)]
        return [data, "--steps", str(steps), *sizes, "--output", path]


def _scaled(sizes: Mapping[str, int], scale: float) -> dict[str, int]:
    return {name: max(round(count * scale), 16) if count else 0 for name, count in sizes.items()}


SPACES: Mapping[str, PaperSpace] = {
    "iter08": PaperSpace(
        "iteration 8, 6 parameters", "iter08_token_budget",
        points=4096, calibration=640, test=1024, seeds=64, train_seeds=8, other_points=64,
        branch=64, own=(256, 640, 640, 64), common=(64, 128), random_state=2,
    ),
    "iter01": PaperSpace(
        "iteration 1, 7 parameters, a plateau", "iter01_priority_cascade",
        points=1024, calibration=1024, test=1024, seeds=32, train_seeds=8, steps=3000,
    ),
    "joint": PaperSpace(
        "all layers, 18 parameters", "joint_all_layers",
        points=16_384, calibration=1024, test=2592, seeds=8, train_seeds=8, steps=36_000,
        members=10, width=128,
    ),
}  # fmt: skip


# --- the tables of `papers.surrogate` in Markdown, one function a part ---------------------------


LEVEL = 0.01


def bars(table: pd.DataFrame) -> list[str]:
    """Write R² of every output beside its ceiling, and which outputs fall short of their bar."""
    first = table.iloc[0]
    head = (
        "output", "unit", "mean", "sd over points", "RMSE", "noise between points",
        "standard error over seeds", "R²", "ceiling", "R² other seeds", "levels equal", "bar",
    )  # fmt: skip
    rows = []
    for row in table.itertuples():
        noise = row.sd * math.sqrt(max(1 - row.reliability, 0.0))
        mark = f"**{row.bar}**" if row.bar == "not met" else row.bar
        rows.append((
            row.output, row.unit, f"{row.mean:.5g}", f"{row.sd:.3g}", f"{row.rmse:.3g}", f"{noise:.2g}",
            f"{row.seed_noise:.3g}", f"{row.r2:.4f}", f"{row.reliability:.4f}", _number(row.r2_other),
            _number(row.r2_other_shape), mark,
        ))  # fmt: skip
    short = table[table["bar"] == "not met"]
    words = ", ".join(f"{row.output} {row.r2:.3f}" for row in short.itertuples()) or "none"
    counts = table["bar"].value_counts()
    tested = len(table) - counts.get("no signal", 0)
    blank = f"; in {len(table) - tested} points differ by less than the noise" * (
        int(tested < len(table))
    )
    return [
        f"{first.train_points} training points, {first.num_points} test points, {first.runs} runs in all.",
        "",
        *table_lines(head, rows),
        "",
        f"{counts.get('met', 0)} of {tested} outputs meet their bar{blank}; short: {words}.",
    ]


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}"


def coverage(table: pd.DataFrame) -> list[str]:
    """Write the coverage of 90 % intervals and the binomial tests."""
    head = (
        "intervals of", "outputs", "covered, least to most", "rejected at 1 % each", "all as one (Holm)",
        "with finite calibration",
    )  # fmt: skip
    rows = [
        (
            kind, len(part), f"{part['share'].min():.3f} to {part['share'].max():.3f}",
            int((part["p_binomial"] < LEVEL).sum()),
            int((holm(part["p_binomial"].to_numpy()) < LEVEL).sum()),
            int((part["p_finite_calibration"] < LEVEL).sum()),
        )
        for kind, part in table.groupby("interval")
    ]  # fmt: skip
    rejected = table[table["p_binomial"] < LEVEL]
    words = ", ".join(f"{r.output} ({r.interval}, {r.share:.3f})" for r in rejected.itertuples())
    said = f"{table['points'].iloc[0]} test points. Rejected: {words or 'none'}."
    return [*table_lines(head, rows), "", said]


def regions(table: pd.DataFrame) -> list[str]:
    """Write the coverage of the pool's intervals in each region."""
    parts = table.groupby(["region", "interval"], sort=False)
    return table_lines(
        ("region", "points", "intervals of", *fitted_levels.SHARE_HEAD),
        (
            (region, part["points"].iloc[0], kind, *fitted_levels.share_cells(part["share"]))
            for (region, kind), part in parts
        ),
    )


def any_seeds(table: pd.DataFrame) -> list[str]:
    """Write the coverage of intervals for any seeds, and which outputs lie beyond 86 to 94 %."""
    whole = table[(table["region"] == "whole space") & (table["num_seeds"] == 32)]
    off = whole[(whole["share"] - 0.9).abs() > fitted_levels.NEAR]
    words = ", ".join(
        f"{row.output} ({row.seeds}, {row.interval}, {row.share:.3f})" for row in off.itertuples()
    )
    return [
        *fitted_levels.any_seeds_lines(table), "",
        f"Beyond 86 to 94 % for means over 32 seeds in the whole space: {words or 'none'}.",
    ]  # fmt: skip


def common_seeds(table: pd.DataFrame) -> list[str]:
    """Write R², by what is known of the seeds, and coverage on sets of seeds that all points share; then over all
    outputs.
    """
    sets = table["first_seed"].unique().tolist()
    head = (
        "output", "R² beside the simulated baseline", "R² from requests", "R² with the pool's level",
        "covered beside the baseline", "covered from requests", "half width, both",
    )  # fmt: skip
    lines = [
        f"{table['points'].iloc[0]} points on each of {len(sets)} sets of {table['num_seeds'].iloc[0]} seeds, which "
        f"begin at {', '.join(map(str, sets))}, one set after the other.",
        "",
    ]
    rows = []
    for output, part in table.groupby("output", sort=False):
        cells = [
            ", ".join(f"{value:.2f}" for value in part[name])
            for name in ("r2_simulated", "r2", "r2_pool", "share_simulated", "share")
        ]
        widths = [part[name].mean() for name in ("half_width_simulated", "half_width")]
        rows.append((output, *cells, " and ".join(f"{width:.3g}" for width in widths)))
    return [*lines, *table_lines(head, rows), "", *_of_all_outputs(table)]


def _of_all_outputs(table: pd.DataFrame) -> list[str]:
    """Write the least and the median of the outputs' least R², and how often intervals hold over all outputs."""
    lines = []
    for end, words in (("_simulated", "beside the simulated baseline"), ("", "from requests")):
        least = table.groupby("output")[f"r2{end}"].min()
        share = table[f"share{end}"]
        lines.append(
            f"- {words}: R² {least.min():.2f} at least ({least.idxmin()}), median of the outputs' least "
            f"{least.median():.3f}, at least 0.55 on every set for {int((least >= 0.55).sum())} of {len(least)} "
            f"outputs; covered {share.mean():.3f} on average, {share.min():.3f} to {share.max():.3f}"
        )
        held = share.groupby(table["output"]).min().sort_values()
        unsure = ", ".join(f"{name} {value:.2f}" for name, value in held[held < 0.8].items())
        lines.append(
            f"- {words}: {int((held >= 0.86).sum())} of {len(held)} outputs are covered in 0.86 or more on every "
            f"set; below 0.80 on one set: {unsure or 'none'}"
        )
    return lines


def held_on_sets(any_seeds: pd.DataFrame, common_seeds: pd.DataFrame) -> str:
    """Say on how many sets as many points are covered as `blis-jax surrogate predict` promises.

    The seeds' share of a mean's variance follows from the half widths for one run and for means over more.
    """
    is_meant = (any_seeds["region"] == "whole space") & (
        any_seeds["seeds"] == levels_model.SIMULATED
    )
    level = any_seeds[is_meant & (any_seeds["interval"] == levels_model.LEVEL)]
    widths = level.pivot_table("half_width", "output", "num_seeds")
    one, most = widths.columns.min(), widths.columns.max()
    of_seeds = (widths[one] ** 2 - widths[most] ** 2) / (most / one - 1)
    shared = of_seeds / widths[most] ** 2
    least = pd.Series(levels_model.least_held(shared.to_numpy(), 0.9), shared.index)
    wanted = common_seeds["output"].map(least)
    is_held = common_seeds["share_simulated"] >= wanted
    return (
        f"As many points of a set as `blis-jax surrogate predict` says for nine sets of ten, {wanted.min():.2f} to "
        f"{wanted.max():.2f} by output, are covered in {int(is_held.sum())} of {len(is_held)} pairs of an output and a "
        f"set, {100 * is_held.mean():.0f} %."
    )


def levels(table: pd.DataFrame) -> list[str]:
    """Make the table of the variance over seeds that the seeds' requests do not explain."""
    first = table.iloc[0]
    head = (
        "variance left by a seed's requests", f"baseline, {first.seeds} seeds",
        f"single runs at {first.points} points", "these, beside the baseline's run",
    )  # fmt: skip
    values = table[["at_baseline", "at_points", "beside_baseline"]].to_numpy()
    rows = zip(table["output"], values, strict=True)
    return table_lines(head, ((output, *(f"{v:.2f}" for v in row)) for output, row in rows))


def rivals(table: pd.DataFrame) -> list[str]:
    """Write R² by model and output."""
    wide = table.pivot_table(index="model", columns="output", values="r2", sort=False)
    seconds = table.groupby("model")["fit_cpu_s"].mean()
    spent = {
        model: "–" if math.isnan(seconds[model]) else f"{seconds[model]:.1f}"
        for model in wide.index
    }
    return table_lines(
        ("model", *wide.columns, "CPU s a fit"),
        ((model, *(f"{v:.4f}" for v in row), spent[model]) for model, row in wide.iterrows()),
    )


def curve(table: pd.DataFrame) -> list[str]:
    """Write R² by number of training runs and output."""
    wide = table.pivot_table(index=["points", "runs"], columns="output", values="r2", sort=False)
    return table_lines(
        ("training points", "runs", *wide.columns),
        ((*size, *(f"{v:.4f}" for v in row)) for size, row in wide.sort_index().iterrows()),
    )


def speed(table: pd.DataFrame) -> list[str]:
    """Write the points per second of each call."""
    return table_lines(
        ("call", "points/s", "points per second of CPU", "cores", "load"),
        (
            (row.call, f"{row.points_per_s:,.0f}", f"{row.points_per_cpu_s:,.0f}", row.cores, f"{row.load:.1f}")
            for row in table.itertuples()
        ),
    )  # fmt: skip


# --- all of them ----------------------------------------------------------------------------------


_TABLES = {
    table.__name__: table
    for table in (bars, coverage, regions, any_seeds, common_seeds, levels, rivals, curve, speed)
}


def show_tables(names: Sequence[str], folder: Path, parts: Sequence[str]) -> None:
    """Print the answer, then the tables of each space that are there, in Markdown."""
    texts = {name: _text(name, SPACES[name], folder, parts) for name in names}
    made = [name for name, text in texts.items() if text]
    render.show_answer(
        Answer.of(
            "How near is a surrogate to the simulator that it learned from?",
            [_met(name, folder) for name in made] if made else "no tables yet",
            "points of test, which no surrogate was trained on; intervals are 90 %.",
            "the datasets that were kept were not run again." if made else "nothing was run.",
            f"the tables are CSV files in {folder}." if made else "leave --saved out to make them.",
        ),
        *(text or f"{name}: no tables yet" for name, text in texts.items()),
    )


def _met(name: str, folder: Path) -> str:
    """Say how many outputs of a space meet their bar."""
    path = _table_path(folder, name, "bars")
    if not path.exists():
        return f"{name}: no table of bars yet."
    bars = pd.read_csv(path)["bar"]
    return f"{name}: {int((bars == 'met').sum())} of {len(bars)} outputs meet their bar."


def _table_path(folder: Path, name: str, part: str) -> Path:
    """Return the file of a table, which is packed where it ships."""
    packed = folder / f"{name}_{part}.csv.xz"
    return packed if packed.exists() else folder / f"{name}_{part}.csv"


def _text(name: str, space: PaperSpace, folder: Path, parts: Sequence[str]) -> str:
    paths = {part: _table_path(folder, name, part) for part in parts}
    there = {part: pd.read_csv(path) for part, path in paths.items() if path.exists()}
    texts = ["\n".join(_TABLES[part](table)) for part, table in there.items()]
    if {"any_seeds", "common_seeds"} <= set(there):
        texts.append(held_on_sets(there["any_seeds"], there["common_seeds"]))
    return "\n\n".join([f"## {name}: {space.title}", *texts]) if texts else ""

"""Figures of a record: their data, what draws them, and the command that draws one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from blis_jax.commands import cli
from blis_jax.commands.options import OverwriteSwitch, option, word
from blis_jax.commands.options.outputs import output_path
from blis_jax.errors import ConfigError, choices
from blis_jax.files.atomic_write import write_csv
from blis_jax.lazy import pandas as pd
from blis_jax.metrics.metric import ALL, split_name
from blis_jax.reports import style
from blis_jax.statistics.intervals import Estimate, estimate
from blis_jax.statistics.paired import difference
from papers.record.runs import PaperRuns, SettingSample
from papers.record.settings import RunSetting

if TYPE_CHECKING:
    from papers.record.measures import Measurement


PICTURES, DATA = "pictures", "data"


@dataclass(frozen=True)
class Expected:
    """A number that a figure's data must have, known from elsewhere, with its relative tolerance."""

    where: Mapping[str, object]  # columns of the data
    value: float
    within: float


def expected(
    columns: str, rows: Iterable[Sequence[Any]], within: float = 0.15, **common: object
) -> tuple[Expected, ...]:
    """Return an `Expected` for each row: its last entry is the number; the entries before it and `common` locate it."""
    names = columns.split()
    return tuple(
        Expected(dict(zip(names, row[:-1], strict=True)) | common, row[-1], within) for row in rows
    )


class FigureWords(NamedTuple):
    """The words of a figure; `{num_seeds}` in its caption is the most seeds of its data."""

    title: str
    caption: str
    legend: Sequence[Any] = ()
    legend_columns: int | None = None


# panels `[row, column]`, from the figure's data
Fill = Callable[[Any, "pd.DataFrame"], FigureWords]


@dataclass(frozen=True)
class PaperFigure:
    """One figure: its name, which is also that of data and picture, what it shows, and how it is drawn."""

    package: str  # of the record
    name: str
    what: str
    size: tuple[float, int, int]  # inches of height without words, rows and columns of panels
    fill: Fill
    expected: Sequence[Expected]  # what the figure's data are known to have
    layout: Mapping[str, Any]  # of the panels, as matplotlib's `subplots` takes it

    def draw(self, data: Path, path: Path) -> None:
        """Draw the figure from a folder of data into a PNG."""
        table = read(data, self.name)
        with style.figure(*self.size, **self.layout) as (figure, panels):
            words = self.fill(panels, table)
            num_seeds = str(int(table["num_seeds"].max())) if "num_seeds" in table else ""
            caption = words.caption.replace("{num_seeds}", num_seeds)
            style.save(figure, path, words.title, caption, words.legend, words.legend_columns)


def shows(
    package: str,
    what: str,
    size: tuple[float, int, int],
    expected: Sequence[Expected] = (),
    **layout: Any,
) -> Callable[[Fill], PaperFigure]:
    """Decorate a function that fills the panels of a record's figure; the figure is named after the function."""
    return lambda fill: PaperFigure(package, fill.__name__, what, size, fill, expected, layout)


def shipped_data(package: str) -> Path:
    """Return the folder of the data that come with a record."""
    return Path(str(files(package))) / DATA


def read(data: Path, name: str) -> pd.DataFrame:
    """Read the saved data of one figure.

    Raises:
        ConfigError: the folder has no data of this figure.
    """
    path = data / f"{name}.csv"
    if not path.is_file():
        raise ConfigError(
            f"{path} does not exist; give --data FOLDER, or compute the data with --figures of the "
            "record's command"
        )
    return pd.read_csv(path, keep_default_na=False, na_values=["nan", ""], dtype={"x": object})


def chosen(table: pd.DataFrame, **values: object) -> pd.DataFrame:
    """Return the table's rows with these values; x becomes a number if all of these rows have one."""
    for column, value in values.items():
        wanted = f"{value:g}" if column == "x" and isinstance(value, (int, float)) else value
        table = table[table[column] == wanted]
    numbers = pd.to_numeric(table["x"], errors="coerce")
    return table.assign(x=numbers if numbers.notna().all() else table["x"])


# --- how pictures look: the policies of the scheduling record, lines and axes ---------------------


POLICY_COLOURS: Mapping[str, str] = {
    "baseline": style.GREY,
    "iteration 1": style.GREEN,
    "iteration 3": style.PINK,
    "iteration 5": style.BLUE,
    "8-opt": style.RED,
    "iteration 13": style.ORANGE,
}
POLICY_WORDS: Mapping[str, str] = {
    "baseline": "baseline: first come first served, chunks of 256 tokens",
    "iteration 1": "iteration 1: priorities by class",
    "iteration 3": "iteration 3: iteration 1 with a gate for sheddable requests",
    "iteration 5": "iteration 5: priorities, no chunks for critical and sheddable prompts",
    "8-opt": "8-opt: iteration 8 after search, 962 tokens a step",
}
BURST = (
    "Workload: 1,000 requests within about 0.5 s, a burst at 1.3 to 4 times the prefill capacity of "
    "8 instances and not a steady state."
)
SEEDS = "{num_seeds} seeds, requests by this simulator's generator; bars: 95 % interval of the mean"


def policy_handles(policies: Iterable[str]) -> list[Any]:
    """Return one line per policy for a legend."""
    return [
        style.line_handle(POLICY_WORDS[name], color=POLICY_COLOURS[name], linewidth=2.2)
        for name in policies
    ]


def cross_handle(words: str) -> Any:
    """Return the legend's entry for the crosses of published numbers."""
    return style.line_handle(words, color=style.BLACK, marker="x", linestyle="none")


def draw_line(panel: Any, rows: pd.DataFrame, color: str, scale: float = 1.0, **look: Any) -> None:
    """Draw means, times `scale`, with bars for their intervals; `rows` have x, mean, low and high."""
    rows = rows.sort_values("x")
    mean, low, high = (scale * rows[name] for name in ("mean", "low", "high"))
    reach = [(mean - low).clip(lower=0), (high - mean).clip(lower=0)]
    panel.errorbar(rows["x"], mean, yerr=reach, **({"marker": "o"} | look | {"color": color}))


def draw_lines(
    panel: Any,
    table: pd.DataFrame,
    colours: Mapping[str, str],
    scale: float = 1.0,
    **values: object,
) -> None:
    """Draw a line for each policy through the rows with these values, in its colour and times `scale`."""
    for policy, colour in colours.items():
        draw_line(panel, chosen(table, policy=policy, **values), colour, scale)


def at_load(table: pd.DataFrame, load: str) -> pd.DataFrame:
    """Return the rows whose x is `LOAD SIZE` with the given load, and put the size in place of x."""
    parts = table["x"].str.split(" ", expand=True)
    return table.assign(x=parts[1])[parts[0] == load]


def size_axes(above: Any, below: Any, most: float) -> None:
    """Set the axes of two panels, one above the other: cluster sizes, and below changes in % up to `most`."""
    above.set_xscale("log", base=2)
    above.set_xticks([4, 8, 16, 32], ["4", "8", "16", "32"])
    above.set_ylim(bottom=0)
    below.set_ylim(-100, most)


# --- the command that draws one -------------------------------------------------------------------


class FigureFiles(OverwriteSwitch, title="figure"):
    """Options for which figure, for its data and for its output."""

    name: str | None = word("FIGURE", "its name")
    data: Path | None = option(Path, None, "FOLDER", "saved data (default: those of the package)")
    output: str | None = option(
        str, None, "PATH", "PNG to write (default: out/RECORD/pictures/FIGURE.png)"
    )


def draw_one(figures: Sequence[PaperFigure], arguments: Sequence[str] | None = None) -> int:
    """Run the command that draws a figure of a record; return its exit code."""
    by_name = {figure.name: figure for figure in figures}
    package = figures[0].package
    about = "Draw one figure from saved data; nothing is simulated. There are:\n"
    about += "\n".join(f"  {figure.name}: {figure.what}" for figure in figures)
    example = f"example:\n  %(prog)s {figures[0].name} --output {figures[0].name}.png"

    @FigureFiles.called(f"{package}.figures", about, example).as_main
    def drawn(options: FigureFiles) -> int:
        """Draw the figure."""
        name = options.name or ""
        if name not in by_name:
            raise ConfigError(f"figure {name!r} is not known; {choices(name, by_name)}")
        figure = by_name[name]
        default = f"out/{package.rpartition('.')[2]}/{PICTURES}/{name}.png"
        path = output_path(options.output or default, "--output", (".png",), options.overwrite)
        data = options.data or shipped_data(figure.package)
        with cli.writing(path):
            figure.draw(data, path)
        print(f"Written: {path}")
        return 0

    return drawn(arguments)


# --- data of figures: one small CSV a figure, in long form, from samples of settings --------------

# Columns: policy, x and slo_class as the figure needs them, metric, then mean, low and high over the
# seeds (95 % interval of the mean unless the figure says otherwise) and how many seeds had a value.


COLUMNS = ("policy", "x", "slo_class", "metric", "mean", "low", "high", "num_seeds")
Row = tuple[str, float | str, str, str, float, float, float, int]
Get = Callable[[Iterable[RunSetting], "Measurement"], Mapping[str, SettingSample]]


def compute(
    tables: Mapping[str, Callable[[Get], list[Row]]],
    runs: PaperRuns,
    seeds: Sequence[int],
    folder: Path,
) -> None:
    """Write the data of each figure; runs that `runs` has are not simulated again."""

    def get(
        settings: Iterable[RunSetting], measurement: Measurement
    ) -> Mapping[str, SettingSample]:
        return runs.get(settings, seeds, measurement)

    for name, table in tables.items():
        write_rows(folder / f"{name}.csv", table(get))


def place_of(name: str) -> tuple[str, float | str]:
    """Return the policy and x of a setting named `policy|x`; x is a number if it reads like one."""
    policy, _, x = name.partition("|")
    try:
        return policy, float(x)
    except ValueError:
        return policy, x


def row_of(policy: str, x: float | str, slo_class: str, metric: str, estimated: Estimate) -> Row:
    """Return one line of the data."""
    ends = estimated.mean, estimated.low, estimated.high
    return policy, x, slo_class, metric, *ends, estimated.num_seeds


def split_metric(metric: str) -> tuple[str, str]:
    """Return a metric's name and its class, `all` if it has none."""
    base, slo_class = split_name(metric)
    return base, slo_class or ALL


def value_rows(samples: Mapping[str, SettingSample], metrics: Sequence[str]) -> list[Row]:
    """Return means of metrics of settings named `policy|x`."""
    rows = []
    for name, sample in samples.items():
        policy, x = place_of(name)
        for metric in metrics:
            base, slo_class = split_metric(metric)
            rows.append(row_of(policy, x, slo_class, base, estimate(sample.column(metric))))
    return rows


def changes_at(
    samples: Mapping[str, SettingSample], metrics: Sequence[str], reference: str
) -> list[Row]:
    """Return changes in % against the reference policy at the same x."""
    rows = []
    for name, sample in samples.items():
        policy, x = place_of(name)
        if policy != reference:
            base = samples[f"{reference}|{name.partition('|')[2]}"]
            rows += change_rows(policy, x, base, sample, metrics)
    return rows


def change_rows(
    policy: str, x: float | str, base: SettingSample, sample: SettingSample, metrics: Sequence[str]
) -> list[Row]:
    """Return changes of metrics in % against other runs, paired by seed."""
    rows = []
    for metric in metrics:
        name, slo_class = split_metric(metric)
        change = difference(base.column(metric), sample.column(metric)).percent
        rows.append(row_of(policy, x, slo_class, f"{name}_change_percent", change))
    return rows


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write rows as CSV."""
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    frame["x"] = [f"{x:g}" if isinstance(x, float | int) else x for x in frame["x"]]
    write_csv(path, frame, 6)

"""Figures of a record: their data, what draws them, and the command that draws one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from blis_jax.commands import cli
from blis_jax.commands.options import OverwriteSwitch, option, word
from blis_jax.commands.options.outputs import output_path
from blis_jax.errors import ConfigError, choices
from blis_jax.files.atomic_write import replacing
from blis_jax.lazy import pandas as pd
from blis_jax.metrics.metric import ALL, split_name
from blis_jax.statistics.intervals import Estimate, estimate
from blis_jax.statistics.paired import difference
from papers.record.runs import PaperRuns, Say, SettingSample
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


Draw = Callable[[Path, Path], None]  # from a folder of data to a picture


@dataclass(frozen=True)
class PaperFigure:
    """One figure: its name, which is also that of data and picture, what it shows, and how it is drawn."""

    package: str  # of the record
    name: str
    what: str
    draw: Draw
    expected: Sequence[Expected]  # what the figure's data are known to have


def shows(
    package: str, what: str, expected: Sequence[Expected] = ()
) -> Callable[[Draw], PaperFigure]:
    """Decorate a function that draws a figure of a record, which is named after it."""
    return lambda draw: PaperFigure(package, draw.__name__, what, draw, expected)


def shipped_data(package: str) -> Path:
    """Return the folder of the data that come with a record."""
    return Path(str(files(package))) / DATA


def read(data: Path, name: str) -> pd.DataFrame:
    """Read the saved data of one figure.

    Raises:
        ConfigError: there are none in the folder.
    """
    path = data / f"{name}.csv"
    if not path.is_file():
        raise ConfigError(
            f"{path} does not exist; give --data FOLDER, or compute the data with --figures of the "
            "record's command"
        )
    return pd.read_csv(path, keep_default_na=False, na_values=["nan", ""], dtype={"x": object})


def chosen(table: pd.DataFrame, **values: object) -> pd.DataFrame:
    """Return the rows with these values; then x is a number if it is one in all of them."""
    for column, value in values.items():
        wanted = f"{value:g}" if column == "x" and isinstance(value, (int, float)) else value
        table = table[table[column] == wanted]
    numbers = pd.to_numeric(table["x"], errors="coerce")
    return table.assign(x=numbers if numbers.notna().all() else table["x"])


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
    say: Say | None,
) -> None:
    """Write the data of each figure; what the runs have is not simulated again."""

    def get(
        settings: Iterable[RunSetting], measurement: Measurement
    ) -> Mapping[str, SettingSample]:
        return runs.get(settings, seeds, measurement, say)

    for name, table in tables.items():
        write_rows(folder / f"{name}.csv", table(get))


def place_of(name: str) -> tuple[str, float | str]:
    """Return policy and place of a setting named `policy|x`."""
    policy, _, x = name.partition("|")
    try:
        return policy, float(x)
    except ValueError:
        return policy, x


def row_of(policy: str, x: float | str, slo_class: str, metric: str, estimated: Estimate) -> Row:
    """Return one line of the data."""
    return (
        policy,
        x,
        slo_class,
        metric,
        estimated.mean,
        estimated.low,
        estimated.high,
        estimated.num_seeds,
    )


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
    """Return changes in % against the reference policy at the same place."""
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
    with replacing(path) as written:
        frame = pd.DataFrame(rows, columns=list(COLUMNS))
        frame["x"] = [f"{x:g}" if isinstance(x, float | int) else x for x in frame["x"]]
        frame.to_csv(written, index=False, float_format="%.6g", lineterminator="\n")

"""Figures of a record: their data, scripts that draw one each from them, and the command that they share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from blis_jax.commands import cli
from blis_jax.commands.options import OverwriteSwitch, option
from blis_jax.commands.options.outputs import output_path
from blis_jax.errors import ConfigError
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


@dataclass(frozen=True)
class PaperFigure:
    """One script: its module, which is also the name of data and picture, and what it shows."""

    package: str  # of the record
    name: str
    what: str

    @property
    def module(self) -> str:
        """Return the name of the module that draws the figure."""
        return f"{self.package}.figures.{self.name}"

    @property
    def expected(self) -> tuple[Expected, ...]:
        """Return what the figure's data are known to have."""
        known: tuple[Expected, ...] = import_module(self.module).EXPECTED
        return known

    def draw(self, data: Path, path: Path) -> None:
        """Draw the figure from a folder of data."""
        import_module(self.module).draw(data, path)


def figures_of(package: str, about: Mapping[str, str]) -> tuple[PaperFigure, ...]:
    """Return the figures of a record by name, with what each shows."""
    return tuple(PaperFigure(package, name, what) for name, what in about.items())


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


class FigureFiles(OverwriteSwitch, title="files"):
    """Options for a figure's data and for its output."""

    data: Path | None = option(Path, None, "FOLDER", "saved data (default: those of the package)")
    output: str | None = option(
        str, None, "PATH", "PNG to write (default: out/RECORD/pictures/FIGURE.png)"
    )


def draw_one(figure: PaperFigure, arguments: Sequence[str] | None = None) -> int:
    """Run the command of one figure's script; return its exit code."""
    default = f"out/{figure.package.rpartition('.')[2]}/{PICTURES}/{figure.name}.png"
    about = "Draw one figure from saved data; nothing is simulated."
    example = f"example:\n  %(prog)s --output {figure.name}.png"

    @FigureFiles.called(figure.module, about, example).as_main
    def drawn(options: FigureFiles) -> int:
        """Draw the figure."""
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

"""Figures of a record: scripts that draw one each from saved data, and the command that they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.resources import files
from pathlib import Path

from blis_jax.commands import cli
from blis_jax.commands.options import OverwriteSwitch, option
from blis_jax.commands.options.outputs import output_path
from blis_jax.errors import ConfigError
from blis_jax.lazy import pandas as pd

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

    def drawn(words: Sequence[str] | None) -> int:
        """Read the options and draw the figure."""
        options = FigureFiles.called(
            figure.module,
            "Draw one figure from saved data; nothing is simulated.",
            f"example:\n  %(prog)s --output {figure.name}.png",
        ).read(words)
        path = output_path(options.output or default, "--output", (".png",), options.overwrite)
        data = options.data or shipped_data(figure.package)
        with cli.writing(path):
            figure.draw(data, path)
        print(f"Written: {path}")
        return 0

    return cli.run_command(figure.module, drawn, arguments)

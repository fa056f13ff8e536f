"""The figures of the record, one line each; every script draws one from saved data."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from blis_jax.commands import cli
from blis_jax.commands.cli import Flag, Parser
from blis_jax.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

FOLDER = "out/strategy_evolution"


@dataclass(frozen=True)
class PaperFigure:
    """One script: its module, which is also the name of data and picture, and what it shows."""

    name: str
    what: str

    def draw(self, data: Path, path: Path) -> None:
        """Draws it from a folder of data."""
        import_module(f"{__package__}.{self.name}").draw(data, path)


FIGURES = (
    PaperFigure("ttft_distributions", "TTFT distributions by class, baseline against 8-opt"),
    PaperFigure("admission_threshold", "what a gate for sheddable requests costs and brings"),
    PaperFigure("rate_sweep", "arrival rates"),
    PaperFigure("kv_pressure", "KV blocks of an instance"),
    PaperFigure("instance_scaling", "cluster sizes at the published and at equal load"),
    PaperFigure("step_constant", "the gain of whole prompts by the constant cost of a step"),
    PaperFigure("searches", "the two published searches, call by call"),
    PaperFigure("ablation", "parts of the strategies, alone and together"),
    PaperFigure("ttft_parts", "what time to first token consists of"),
    PaperFigure("robustness_map", "which strategy is best where, over 1,024 regimes"),
)


@dataclass(frozen=True)
class Expected:
    """A number that a figure's data must have, known from elsewhere, with its relative tolerance."""

    where: Mapping[str, object]  # columns of the data
    value: float
    within: float


def shipped_data() -> Path:
    """The data that come with the package."""
    return Path(__file__).parents[1] / "data"


def read(data: Path, name: str) -> pd.DataFrame:
    """The saved data of one figure."""
    import pandas as pd

    path = data / f"{name}.csv"
    if not path.is_file():
        raise ConfigError(
            f"{path} does not exist; give --data FOLDER, or compute the data with "
            f"python -m papers.strategy_evolution --figures"
        )
    return pd.read_csv(path, keep_default_na=False, na_values=["nan", ""], dtype={"x": object})


def chosen(table: pd.DataFrame, **values: object) -> pd.DataFrame:
    """The rows with these values; then x is a number if it is one in all of them."""
    import pandas as pd

    for column, value in values.items():
        wanted = f"{value:g}" if column == "x" and isinstance(value, (int, float)) else value
        table = table[table[column] == wanted]
    numbers = pd.to_numeric(table["x"], errors="coerce")
    return table.assign(x=numbers if numbers.notna().all() else table["x"])


def main(name: str, arguments: Sequence[str] | None = None) -> int:
    """The command of one figure's script; returns its exit code."""
    command = f"{__package__}.{name}"

    def drawn(words: Sequence[str] | None) -> int:
        """Reads the options and draws."""
        parser = Parser(
            prog=f"python -m {command}",
            description="Draw one figure from saved data; nothing is simulated.",
            epilog=f"example:\n  %(prog)s --output {name}.png",
        )
        flags = (
            Flag("data", str, None, "FOLDER", "saved data (default: those of the package)"),
            Flag("output", str, f"{FOLDER}/pictures/{name}.png", "PATH", "PNG to write"),
        )
        parser.add_flags("files", flags)
        given = parser.given(sys.argv[1:] if words is None else words)
        path = Path(given.get("output", f"{FOLDER}/pictures/{name}.png"))
        if path.suffix != ".png":
            raise ConfigError(f"--output: {str(path)!r} must end in .png")
        if "output" not in given:
            path.parent.mkdir(parents=True, exist_ok=True)
        cli.check_writable(path)
        data = Path(given["data"]) if "data" in given else shipped_data()
        with cli.writing(path):
            import_module(f"{__package__}.{name}").draw(data, path)
        print(f"Written: {path}")
        return 0

    return cli.run_command(command, drawn, arguments)

"""`python -m papers.surrogate`: data, surrogates, bars, rivals and learning curves of three spaces."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.commands import cli
from blis_jax.commands.options import CommandOptions, option, switch
from blis_jax.errors import ConfigError, closest
from blis_jax.reports import render
from blis_jax.reports.findings import Answer
from papers.surrogate import tables
from papers.surrogate.spaces import MOST_WANTED, SPACES, PaperSpace

if TYPE_CHECKING:
    import pandas as pd

NAME = "papers.surrogate"
FOLDER = "out/surrogate"
SAVED = Path(__file__).parent / "data"
OF_SEEDS = ("any_seeds", "common_seeds", "levels")  # of a space with points on seeds of their own
PARTS = (
    "data", "fit", "bars", "coverage", "regions", *OF_SEEDS, "figures", "rivals", "curve", "speed",
)  # fmt: skip
FIGURES = ("parity", "residuals")
CURVE_STEPS = 1500

_DESCRIPTION = """\
Simulate the datasets of iteration 8, iteration 1 and of all layers together, fit surrogates, and
print for each space whether the bars are met: R² on unseen points against 0.98, 0.95 or 0.9 of the
ceiling; coverage of 90 % intervals, apart for the best quarter and the branch without a chunk limit;
coverage for any seeds, of means and of differences from the baseline; pictures; rivals on the same
data; the learning curve; speed. Every part is kept, so a command that was stopped goes on where
it was.
"""
_EXAMPLES = """\
examples:
  the tables from the data that come with the package, at once:
    %(prog)s --saved

  iteration 8 from scratch:
    %(prog)s --spaces iter08

  only the table of bars, made if it is not there:
    %(prog)s --spaces iter08 --parts bars

  all of it at a hundredth of the size, to try:
    %(prog)s --scale 0.01 --output out/try
"""


class _What(CommandOptions, title="what"):
    """Options for the parts to make, and for their size."""

    spaces: str = option(str, ",".join(SPACES), "LIST", f"of {', '.join(SPACES)}")
    parts: str = option(str, ",".join(PARTS), "LIST", f"of {', '.join(PARTS)}")
    scale: float = option(cli.number, 1.0, "R", "share of the points and steps")
    output: str = option(str, FOLDER, "FOLDER", "where datasets, surrogates and tables go")


class SurrogatePaperOptions(
    _What, title="switches", command=NAME, description=_DESCRIPTION, examples=_EXAMPLES
):
    """Options of the command."""

    saved: bool = switch("print the tables that come with it")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return cli.run_command(NAME, _make, arguments)


def _make(arguments: Sequence[str] | None) -> int:
    options = SurrogatePaperOptions.read(arguments)
    spaces = _list("spaces", options.spaces, tuple(SPACES))
    parts, scale = _list("parts", options.parts, PARTS), options.scale
    if not 0 < scale <= 1:
        raise ConfigError(f"--scale: got {scale:g}, allowed is above 0 up to 1")
    if options.saved:
        _print(spaces, SAVED)
        return 0
    output = Path(options.output)
    cli.check_writable(output, is_folder=True)
    for name in spaces:
        job = Job(name, SPACES[name], output, scale)
        for part in PARTS:
            if part in parts:
                job.make(part)
    _print(spaces, output)
    return 0


def _list(name: str, text: str, allowed: Sequence[str]) -> tuple[str, ...]:
    chosen = tuple(part.strip() for part in text.split(",") if part.strip())
    for part in chosen:
        if part not in allowed:
            raise ConfigError(
                f"--{name}: {part!r} is unknown; there are {', '.join(allowed)}"
                f"{closest(part, allowed)}"
            )
    return chosen


@dataclass(frozen=True)
class Job:
    """One space: its files in `output`, and how each is made from those before."""

    name: str
    space: PaperSpace
    output: Path
    scale: float

    @property
    def data(self) -> Path:
        """Return the path of the dataset."""
        return self.output / f"{self.name}.zarr"

    @property
    def own(self) -> Path:
        """Return the path of the dataset of points on seeds of their own."""
        return self.output / f"{self.name}_seeds.zarr"

    @property
    def common(self) -> Path:
        """Return the path of the dataset of points that share sets of further seeds."""
        return self.output / f"{self.name}_common.zarr"

    @property
    def model(self) -> Path:
        """Return the folder of the surrogate."""
        return self.output / f"{self.name}.surrogate"

    def make(self, part: str) -> None:
        """Make a part, and what it needs, unless it is there."""
        self.output.mkdir(parents=True, exist_ok=True)
        if part == "data":
            words = self.space.dataset_arguments(str(self.data), self.scale)
            self._command("data", "sweeps.dataset", [*words, "--resume"])
            if self.space.own:
                words = self.space.own_arguments(str(self.own), self.scale)
                self._command("own seeds", "sweeps.dataset", [*words, "--resume"])
            if self.space.common[0]:
                words = self.space.common_arguments(str(self.common), self.scale)
                self._command("common seeds", "sweeps.dataset", [*words, "--resume"])
        elif part == "fit":
            if not self.model.exists():
                self.make("data")
                words = self.space.train_arguments(str(self.data), str(self.model), self.scale)
                words += ["--seeds-data", str(self.own)] if self.space.own else []
                self._command("fit", "surrogate.train", [*words, "--resume"])
        elif not self._is_made(part) and (part not in OF_SEEDS or self.space.own):
            self.make("fit")
            from surrogate.coverage import read_pair, write_table

            table = _MAKERS[part](self, *read_pair(self.model, self.data))
            if table is not None:
                write_table(table, self._table(part))

    def picture(self, name: str) -> Path:
        """Return the path of a figure."""
        return self.output / f"{self.name}_{name}.png"

    def _is_made(self, part: str) -> bool:
        if part == "figures":
            return all(self.picture(name).exists() for name in FIGURES)
        return self._table(part).exists()

    def _table(self, part: str) -> Path:
        return self.output / f"{self.name}_{part}.csv"

    def _command(self, part: str, module: str, words: Sequence[str]) -> None:
        """A command in a process of its own, since the engine and the network want other XLA flags."""
        started = time.monotonic()
        done = subprocess.run([sys.executable, "-m", module, *words], check=False)
        if done.returncode:
            raise ConfigError(f"{module} ended with code {done.returncode}; see above")
        seconds = time.monotonic() - started
        cli.say(NAME, f"{self.name}, {part}: {seconds:.0f} s")


# --- the tables -----------------------------------------------------------------------------------


def _bars(job: Job, surrogate: Any, data: Any) -> pd.DataFrame:
    import pandas as pd

    from surrogate.scores import evaluate, verdict

    rows = [
        dataclasses.asdict(score)
        | {
            "runs": data.num_runs,
            "train_points": int(surrogate.about["num_points"]),
            "bar": verdict(score, MOST_WANTED),
        }
        for score in evaluate(surrogate, data)
    ]
    return pd.DataFrame(rows)


def _coverage(job: Job, surrogate: Any, data: Any) -> pd.DataFrame:
    from surrogate.coverage import coverage_table

    return coverage_table(surrogate, data, 0.9)


def _regions(job: Job, surrogate: Any, data: Any) -> pd.DataFrame:
    from surrogate.coverage import regions_table

    return regions_table(surrogate, data, 0.9)


def _any_seeds(job: Job, surrogate: Any, data: Any) -> pd.DataFrame:
    from surrogate.levels.fit import any_seeds_table, load_own

    return any_seeds_table(surrogate, load_own(job.own, data), 0.9)


def _common_seeds(job: Job, surrogate: Any, data: Any) -> pd.DataFrame:
    """The sets beside the pool, then those of the further points."""
    import pandas as pd

    from surrogate.data import load_data
    from surrogate.levels.fit import common_seeds_table

    further = load_data(job.common)
    assert data.seeds is not None and further.seeds is not None
    beside = np.setdiff1d(data.seeds.seeds, data.pool)
    frames = [
        common_seeds_table(surrogate, data.other, beside, data.seeds, 0.9),
        common_seeds_table(surrogate, further.test, further.pool, further.seeds, 0.9),
    ]
    return pd.concat(frames, ignore_index=True)


def _levels(job: Job, surrogate: Any, data: Any) -> pd.DataFrame:
    from surrogate.levels.fit import load_own, unexplained_table

    return unexplained_table(surrogate, load_own(job.own, data))


def _figures(job: Job, surrogate: Any, data: Any) -> None:
    from surrogate import report_figures as figure
    from surrogate.scores import evaluate

    r2 = {score.output: score.r2 for score in evaluate(surrogate, data)}
    found, shown = surrogate.predict(data.test.inputs), _shown(surrogate)
    figure.draw_parity(job.picture("parity"), data, found, shown, r2)
    figure.draw_residuals(job.picture("residuals"), data, found, shown[0])


def _rivals(job: Job, surrogate: Any, data: Any) -> pd.DataFrame:
    from papers.surrogate.rivals import compare

    return compare(surrogate, data, _shown(surrogate))


def _curve(job: Job, surrogate: Any, data: Any) -> pd.DataFrame:
    from surrogate.scores import learning_curve, sizes_of

    steps = max(round(CURVE_STEPS * job.scale), 50)
    settings = dataclasses.replace(surrogate.settings, steps=steps)
    sizes = sizes_of(int(surrogate.about["num_points"]))[::-2][::-1]
    path = job.output / f"{job.name}_curve_parts.csv"
    table = learning_curve(data, settings, sizes, path)
    return table[table["output"].isin(_shown(surrogate))].drop(columns="identity")


def _speed(job: Job, surrogate: Any, data: Any) -> pd.DataFrame:
    from papers.surrogate.rivals import measure

    return measure(surrogate, _shown(surrogate)[0])


_MAKERS: Mapping[str, Callable[[Job, Any, Any], Any]] = {
    "bars": _bars,
    "coverage": _coverage,
    "regions": _regions,
    "any_seeds": _any_seeds,
    "common_seeds": _common_seeds,
    "levels": _levels,
    "figures": _figures,
    "rivals": _rivals,
    "curve": _curve,
    "speed": _speed,
}


def _shown(surrogate: Any) -> list[str]:
    from surrogate.report import SHOWN

    learned = {
        name
        for name, flag in zip(surrogate.outputs, surrogate.scales.is_learned, strict=True)
        if flag
    }
    return [name for name in SHOWN if name in learned] or sorted(learned)[:1]


# --- words ----------------------------------------------------------------------------------------


def _print(names: Sequence[str], folder: Path) -> None:
    """Print the answer, then the tables of each space that are there, in Markdown."""
    texts = {name: _text(name, SPACES[name], folder) for name in names}
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
    """Return how many outputs of a space are near enough."""
    import pandas as pd

    path = folder / f"{name}_bars.csv"
    if not path.exists():
        return f"{name}: no table of bars yet."
    bars = pd.read_csv(path)["bar"]
    return f"{name}: {int((bars == 'met').sum())} of {len(bars)} outputs meet their bar."


def _text(name: str, space: PaperSpace, folder: Path) -> str:
    import pandas as pd

    found = {part: folder / f"{name}_{part}.csv" for part in PARTS}
    there = {part: pd.read_csv(path) for part, path in found.items() if path.exists()}
    texts = ["\n".join(getattr(tables, part)(table)) for part, table in there.items()]
    return "\n\n".join([f"## {name}: {space.title}", *texts]) if texts else ""


if __name__ == "__main__":
    sys.exit(main())

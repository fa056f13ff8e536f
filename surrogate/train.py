"""`python -m surrogate.train DATA.zarr`: fit a deep ensemble to a dataset and calibrate it."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax import progress
from blis_jax.commands import cli
from blis_jax.commands.options import CommandOptions, OverwriteSwitch, option, switch, words
from blis_jax.errors import ConfigError, reads_store
from blis_jax.files import manifest
from blis_jax.files.atomic_write import (
    clear_leftovers,
    discard,
    refuse_existing,
    refuse_other_work,
    replacing,
    sole_writer,
    versions,
)
from blis_jax.files.input_files import read_text
from blis_jax.reports import render
from blis_jax.reports.findings import Answer

if TYPE_CHECKING:
    from surrogate.data import Data
    from surrogate.fitting.network import FitState, Settings
    from surrogate.levels.fit import OwnData

NAME = "surrogate.train"
SECONDS_BETWEEN_STATES = 20.0

_DESCRIPTION = """\
Fit a deep ensemble to the training points of a dataset, calibrate its intervals on the calibration
points, and write a folder for surrogate.predict. Test points are not looked at. DATA is what
sweeps.dataset or blis_jax.sweep wrote. Of sweeps, several of the same requests may be given; half of
their points are fitted, and a quarter each calibrates and tests. What was done is kept beside the
output: a command that was stopped goes on with --resume and ends with the same surrogate.
"""
_EXAMPLES = """\
examples:
  a surrogate of iteration 8's space:
    %(prog)s out/iter08.zarr --output out/iter08.surrogate

  the same, which also says what holds for any seeds:
    %(prog)s out/iter08.zarr --seeds-data out/iter08_seeds.zarr --output out/iter08.surrogate

  of what two sweeps over a grid ran:
    %(prog)s out/sweep.zarr out/more.zarr --output out/swept.surrogate

  from the first 512 training points, quickly:
    %(prog)s out/iter08.zarr --train-points 512 --steps 2000 --output out/small.surrogate
"""


class _Fit(CommandOptions, title="fit"):
    """Options for the fit."""

    members: int = option(cli.whole, 5, "N", "networks of the ensemble")
    width: int = option(cli.whole, 64, "N", "units in each layer")
    depth: int = option(cli.whole, 3, "N", "hidden layers")
    steps: int = option(cli.whole, 8_000, "N", "gradient steps of every member")
    batch: int = option(cli.whole, 256, "N", "points in a gradient step")
    learning_rate: float = option(cli.number, 2e-3, "R", "highest learning rate")
    random_state: int = option(
        cli.whole, 0, "N", "seed of the starts and the order of the points", also="seed"
    )
    seeds_data: str | None = option(
        str, None, "DATA",
        "runs on seeds outside the pool, .zarr of sweeps.dataset --own-seeds: what is learned of them holds "
        "for any seeds",
    )  # fmt: skip
    best_of: str | None = option(
        str, None, "METRIC",
        "its lowest quarter gets intervals of its own (default: ttft_p99_ms[critical], or the first output)",
    )  # fmt: skip
    train_points: int | None = option(cli.whole, None, "N", "only the first N training points")


_LIMITS = {
    "members": (2, 64), "width": (4, 4096), "depth": (1, 16), "steps": (1, 10_000_000),
    "batch": (1, 65_536), "random_state": (0, 2**31 - 1),
}  # fmt: skip


class _Switches(OverwriteSwitch, title="switches"):
    """Switches that resume a fit, or print less."""

    resume: bool = switch()
    quiet: bool = switch()


class TrainOptions(
    _Fit, _Switches, title="output", command=NAME, description=_DESCRIPTION, examples=_EXAMPLES
):
    """Options of the command."""

    data: tuple[str, ...] = words("DATA", "dataset, .zarr, or saved sweeps")
    output: str | None = option(
        str, None, "PATH", "folder to write (default: DATA with .surrogate)"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return cli.run_command(NAME, _train, arguments)


def _train(arguments: Sequence[str] | None) -> int:
    options = TrainOptions.read(arguments)
    if not options.data:
        raise ConfigError(
            "no dataset is given; give the .zarr that sweeps.dataset or blis_jax.sweep wrote"
        )
    values = _values(options)
    path = _path(options, Path(options.data[0]))

    from surrogate.data import CALIBRATION, TRAIN, load_all
    from surrogate.fitting.network import Settings

    data = load_all(options.data, (TRAIN, CALIBRATION))
    num_points = _num_points(options.train_points, len(data.train.inputs))
    settings = Settings(**values)
    own = _own(options.seeds_data, data)
    keeper = StateKeeper(path.with_name(path.name + ".state"), settings, data.about, num_points)
    with sole_writer(path):
        return _fitted(options, data, own, settings, num_points, keeper, path)


def _fitted(
    options: TrainOptions,
    data: Data,
    own: OwnData | None,
    settings: Settings,
    num_points: int,
    keeper: StateKeeper,
    path: Path,
) -> int:
    """Fits, writes and says so; the exit code."""
    from surrogate.fitting.learn import learn
    from surrogate.fitting.network import epochs_of

    keeper.begin(options.resume)
    started = time.monotonic()

    def on_call(state: FitState, loss: float) -> None:
        """Show and keep what there is."""
        keeper.keep(state)
        work.show(int(state.epoch), f"loss {loss:.4f}")

    about = {
        "data": data.name,
        "data_identity": data.about,
        "data_population": data.population,
        "data_world": data.world,
        "num_points": num_points,
        "num_calibration_points": len(data.calibration.inputs),
    }
    training = progress.phase("training", epochs_of(settings, num_points), "passes")
    with cli.resumable(NAME, keeper.path), training as work:
        surrogate = learn(
            data, settings, num_points, keeper.state_at, on_call, about, options.best_of
        )
        if own is not None:
            from surrogate.levels.fit import with_levels

            work.show(epochs_of(settings, num_points), "what seeds do")
            surrogate = with_levels(surrogate, data, own)
    with cli.writing(path):
        surrogate.save(path)
    keeper.forget()
    if not options.quiet:
        learned = int(surrogate.scales.is_learned.sum())
        render.show_answer(
            Answer.of(
                f"Is there a surrogate of {data.name}?",
                f"{settings.members} networks, {num_points} training points, {learned} of "
                f"{len(data.outputs)} outputs (the others are constant). Written: {path}",
                "calibrated on points of its own; test points were not looked at.",
                f"nothing was simulated; {time.monotonic() - started:.0f} s of training.",
                f"python -m surrogate.coverage {path} DATA says how often its intervals cover.",
            )
        )
    return 0


def _own(path: str | None, data: Data) -> OwnData | None:
    """The runs on seeds outside the pool, if they are given."""
    if path is None:
        return None
    from surrogate.levels.fit import load_own

    return load_own(Path(path), data)


def _values(options: TrainOptions) -> dict[str, Any]:
    values: dict[str, Any] = {name: getattr(options, name) for name in (*_LIMITS, "learning_rate")}
    for name, (low, high) in _LIMITS.items():
        value = values[name]
        if not low <= value <= high:
            raise ConfigError(
                f"--{name.replace('_', '-')}: got {value}, allowed is {low} to {high}"
            )
    if not 0 < values["learning_rate"] <= 1:
        raise ConfigError(
            f"--learning-rate: got {values['learning_rate']:g}, allowed is above 0 up to 1"
        )
    values["seed"] = values.pop("random_state")
    return values


def _path(options: TrainOptions, source: Path) -> Path:
    path = source.with_suffix(".surrogate") if options.output is None else Path(options.output)
    cli.check_writable(path, is_folder=True)
    refuse_existing({"--output": path}, options.overwrite, options.resume)
    return path


def _num_points(asked: int | None, available: int) -> int:
    count = available if asked is None else asked
    if not 2 <= count <= available:
        raise ConfigError(
            f"--train-points: got {count}, allowed is 2 to {available}, which the dataset has"
        )
    return count


_OPTIONS = {
    "members": "--members", "width": "--width", "depth": "--depth", "steps": "--steps",
    "batch": "--batch", "learning_rate": "--learning-rate", "seed": "--random-state",
    "data": "dataset", "points": "--train-points",
}  # fmt: skip


class StateKeeper:
    """The state of a fit that is under way, so that it can be gone on with."""

    def __init__(self, path: Path, settings: Settings, identity: str, num_points: int) -> None:
        self.path = path
        about = {**dataclasses.asdict(settings), "data": identity, "points": num_points}
        self.content = {
            **{_OPTIONS.get(name, name): one for name, one in about.items()},
            **versions(),
        }
        self.kept_at = time.monotonic()
        self.is_resumed = False

    @reads_store("give --overwrite to begin anew")
    def begin(self, is_resumed: bool) -> None:
        """Refuse to go on with another fit's state, and drop one that is not gone on with."""
        clear_leftovers(self.path)
        self.is_resumed = is_resumed and self.path.exists()
        if not self.is_resumed:
            self.forget()
            return
        manifest.check(self.path, "train without --resume")
        text = read_text(self.path / "fit.json", "a fit that was stopped")
        refuse_other_work(self.path, json.loads(text), self.content)

    @reads_store("give --overwrite to begin anew")
    def state_at(self, fresh: FitState) -> FitState | None:
        """Return the state that was kept, if training goes on with it; else None."""
        if not self.is_resumed:
            return None
        from surrogate.fitting.network import FitState
        from surrogate.store import load_arrays

        return FitState(**load_arrays(self.path / "arrays", fresh._asdict()))

    def keep(self, state: FitState) -> None:
        """Write the state, at most once in `SECONDS_BETWEEN_STATES`."""
        if time.monotonic() - self.kept_at < SECONDS_BETWEEN_STATES:
            return
        from surrogate.store import save_arrays

        with cli.writing(self.path), replacing(self.path) as written:
            written.mkdir()
            save_arrays(written / "arrays", state._asdict())
            (written / "fit.json").write_text(json.dumps(self.content), encoding="utf-8")
            manifest.seal(written)
        self.kept_at = time.monotonic()

    def forget(self) -> None:
        """Remove what was kept."""
        discard(self.path)


if __name__ == "__main__":
    sys.exit(main())

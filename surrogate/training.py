"""Train a surrogate as options of `blis-jax surrogate train` say, and keep the state of a fit that is under way."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax import progress
from blis_jax.commands import cli
from blis_jax.errors import ConfigError, reads_store
from blis_jax.files import manifest
from blis_jax.files.atomic_write import (
    clear_leftovers,
    discard,
    finite,
    refuse_other_work,
    replacing,
    sole_writer,
    versions,
)
from blis_jax.files.input_files import read_text
from blis_jax.reports import render
from blis_jax.reports.findings import Answer, Findings, Quantity, Row, Table
from blis_jax.reports.pictures import Axis, Guide, Panel, Picture, Series, Style
from blis_jax.reports.style import BLUE
from blis_jax.reports.words import unit_text
from surrogate.data import CALIBRATION, TRAIN, Data, load_all
from surrogate.fitting.learn import MAIN, learn
from surrogate.fitting.network import FitState, Settings, epochs_of
from surrogate.levels.fit import OwnData, load_own, with_levels
from surrogate.predictor import CONFIDENCE, Surrogate, load_arrays, save_arrays
from surrogate.scores import r_squared

if TYPE_CHECKING:
    from surrogate.train import TrainOptions


SECONDS_BETWEEN_STATES = 20.0
MOST_SHOWN = 8  # outputs in the short form of the table


def train(options: TrainOptions, values: Mapping[str, Any], path: Path) -> int:
    """Fit what the options describe, and write it; return the exit code."""
    data = load_all(options.data, (TRAIN, CALIBRATION))
    num_points = _num_points(options.train_points, len(data.train.inputs))
    settings = Settings(**values)
    own_data = None if options.seeds_data is None else load_own(Path(options.seeds_data), data)
    keeper = StateKeeper(path.with_name(path.name + ".state"), settings, data.about, num_points)
    with sole_writer(path):
        return _fitted(options, data, own_data, settings, num_points, keeper, path)


def _fitted(
    options: TrainOptions,
    data: Data,
    own_data: OwnData | None,
    settings: Settings,
    num_points: int,
    keeper: StateKeeper,
    path: Path,
) -> int:
    """Fit, write the surrogate, and print the answer; return the exit code."""
    keeper.begin(options.resume)
    started = time.monotonic()

    def on_call(state: FitState, loss: float) -> None:
        """Show the progress and keep the state of the fit."""
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
    with cli.resumable(options.command, keeper.path), training as work:
        surrogate = learn(
            data, settings, num_points, keeper.state_at, on_call, about, options.best_of
        )
        if own_data is not None:
            work.show(epochs_of(settings, num_points), "what seeds do")
            surrogate = with_levels(surrogate, data, own_data)
    with cli.writing(path):
        surrogate.save(path)
    keeper.forget()
    if not options.quiet:
        learned = int(surrogate.scales.is_learned.sum())
        answer = Answer.of(
            f"Is there a surrogate of {data.name}?",
            f"{settings.members} networks, {num_points} training points, {learned} of "
            f"{len(data.outputs)} outputs (the others are constant). Written: {path}",
            "calibrated on points of its own; test points were not looked at.",
            f"nothing was simulated; {time.monotonic() - started:.0f} s of training.",
            f"blis-jax surrogate coverage {path} DATA says how often its intervals cover.",
        )
        render.show(learned_of(surrogate, data, answer))
    return 0


def learned_of(surrogate: Surrogate, data: Data, answer: Answer) -> Findings:
    """Return the answer with each output's errors on the calibration points, which no member was fitted to."""
    part = data.calibration
    predictions = surrogate.predict(part.inputs)
    places = np.flatnonzero(surrogate.scales.is_learned).tolist()
    first = next((place for place in places if surrogate.outputs[place] == MAIN), places[0])
    rows: list[Row] = []
    for place in sorted(places, key=lambda place: place != first):
        target, told = part.means[:, place], predictions["mean"].values[:, place]
        width = float(
            np.mean(predictions["high"].values[:, place] - predictions["low"].values[:, place])
        )
        unit = unit_text(surrogate.units[place])
        figures = (
            Quantity(finite(r_squared(target, told))),
            Quantity(finite(float(np.sqrt(np.square(target - told).mean()))), unit=unit),
            Quantity(finite(width), unit=unit),
        )
        rows.append(Row((surrogate.outputs[place], *figures), len(rows) < MOST_SHOWN))
    columns = ("output", "R²", "error (root mean square)", f"width of {CONFIDENCE:.0%} intervals")
    title = f"On the {len(part.inputs)} calibration points, which are not fitted but set the intervals' widths"
    true, told = (means[:, first].tolist() for means in (part.means, predictions["mean"].values))
    drawn = Series(true, told, Style(BLUE, "o", size=3.5))
    name, unit = surrogate.outputs[first], surrogate.units[first]
    axes = (Axis(f"simulated, {unit}"), Axis(f"predicted, {unit}"))
    panel = Panel([Guide(max(true), "diagonal"), drawn], *axes, title=name)
    picture = Picture("Predicted against simulated", f"{title}.", [[panel]], [3.2], name="parity")
    return Findings(answer, [Table(columns, tuple(rows), title, name="outputs")], [picture])


def _num_points(wanted: int | None, available: int) -> int:
    count = available if wanted is None else wanted
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
    """Keeps the state of a fit that is under way, so that the fit can be resumed."""

    def __init__(self, path: Path, settings: Settings, identity: str, num_points: int) -> None:
        self.path = path
        about = {**dataclasses.asdict(settings), "data": identity, "points": num_points}
        self.content = {
            **{_OPTIONS.get(name, name): value for name, value in about.items()},
            **versions(),
        }
        self.kept_at = time.monotonic()
        self.is_resumed = False

    @reads_store("give --overwrite to begin anew")
    def begin(self, is_resumed: bool) -> None:
        """Refuse to resume another fit's state, and remove a state that is not resumed."""
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
        """Return the kept state if the fit is resumed; else None."""
        if not self.is_resumed:
            return None
        return FitState(**load_arrays(self.path / "arrays", fresh._asdict()))

    def keep(self, state: FitState) -> None:
        """Write the state, at most once in `SECONDS_BETWEEN_STATES`."""
        if time.monotonic() - self.kept_at < SECONDS_BETWEEN_STATES:
            return
        with cli.writing(self.path), replacing(self.path) as written:
            written.mkdir()
            save_arrays(written / "arrays", state._asdict())
            (written / "fit.json").write_text(json.dumps(self.content), encoding="utf-8")
            manifest.seal(written)
        self.kept_at = time.monotonic()

    def forget(self) -> None:
        """Remove what was kept."""
        discard(self.path)

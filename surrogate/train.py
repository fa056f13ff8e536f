"""`blis-jax surrogate train DATA.zarr`: fit a deep ensemble to a dataset and calibrate it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from blis_jax.commands import cli, values
from blis_jax.commands.options import CommandOptions, OverwriteSwitch, option, switch, words
from blis_jax.errors import ConfigError, as_option
from blis_jax.files.atomic_write import refuse_existing

NAME = "surrogate.train"

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

    members: int = option(values.whole, 5, "N", "networks of the ensemble")
    width: int = option(values.whole, 64, "N", "units in each layer")
    depth: int = option(values.whole, 3, "N", "hidden layers")
    steps: int = option(values.whole, 8_000, "N", "gradient steps of every member")
    batch: int = option(values.whole, 256, "N", "points in a gradient step")
    learning_rate: float = option(values.number, 2e-3, "R", "highest learning rate")
    random_state: int = option(
        values.whole, 0, "N", "seed of the starts and the order of the points", also="seed"
    )
    seeds_data: str | None = option(
        str, None, "DATA",
        "runs on seeds outside the pool, .zarr of sweeps.dataset --own-seeds: what is learned of them holds "
        "for any seeds",
    )  # fmt: skip
    best_of: str | None = option(
        str, None, "METRIC",
        "output whose lowest quarter gets intervals of its own (default: ttft_p99_ms[critical], or the first)",
    )  # fmt: skip
    train_points: int | None = option(values.whole, None, "N", "only the first N training points")


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


@TrainOptions.as_main
def main(options: TrainOptions) -> int:
    """Run the command; return its exit code."""
    if not options.data:
        raise ConfigError(
            "no dataset is given; give the .zarr that sweeps.dataset or blis_jax.sweep wrote"
        )
    values = _values(options)
    path = _path(options, Path(options.data[0]))

    from surrogate.training import train

    return train(options, values, path)


def _values(options: TrainOptions) -> dict[str, Any]:
    values: dict[str, Any] = {name: getattr(options, name) for name in (*_LIMITS, "learning_rate")}
    for name, (low, high) in _LIMITS.items():
        value = values[name]
        if not low <= value <= high:
            raise ConfigError(f"{as_option(name)}: got {value}, allowed is {low} to {high}")
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


if __name__ == "__main__":
    sys.exit(main())

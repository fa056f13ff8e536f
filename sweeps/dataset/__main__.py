"""`blis-jax dataset STRATEGY --output DATA.zarr`: runs all over a space, for a surrogate."""

from __future__ import annotations

import sys
from typing import ClassVar

from blis_jax.backend import prepare_backend
from blis_jax.commands import values
from blis_jax.commands.options import CommandOptions, OutputSwitches, option, switch
from sweeps.runs.options import ArmRequests, PartOption, StrategyWord

NAME = "sweeps.dataset"
NUM_SEEDS, TRAIN_SEEDS = 64, 8

_DESCRIPTION = """\
Run points all over a strategy's space on a pool of seeds and keep every run, for blis-jax surrogate train.
Training points fill the space evenly and have a few seeds each; calibration and test points are
independent draws and have them all. Points are written as they end: a command that was stopped goes
on with --resume and ends with the same file.
"""
_EXAMPLES = """\
examples:
  the space of the ledger's iteration 8:
    %(prog)s iter08_token_budget --output out/iter08.zarr

  with the load and the cluster as further inputs:
    %(prog)s iter08_token_budget --vary rate=1000:3000,arrival_cv=1:3,instances=6:12

  what seeds outside that pool do, for intervals that hold for any seeds:
    %(prog)s iter08_token_budget --own-seeds 32 --points 256 --calibration 1024 --test 1024 \\
      --baseline iter00_baseline --output out/iter08_seeds.zarr

  small, to try:
    %(prog)s iter08_token_budget --points 64 --calibration 32 --test 32 --seeds 8 --train-seeds 4
"""


class _Sizes(CommandOptions, title="sizes"):
    """Options for the number of points of each role, and of their seeds."""

    points: int = option(values.whole, 3072, "N", "training points, a Sobol sequence")
    calibration: int = option(values.whole, 512, "N", "calibration points, independent draws")
    test: int = option(values.whole, 1024, "N", "test points, independent draws")
    seeds: int | None = option(values.whole, None, "N", "seeds of the pool", shown=NUM_SEEDS)
    train_seeds: int | None = option(
        values.whole, None, "N", "seeds of the pool for each training point, in turns", shown=TRAIN_SEEDS,
    )  # fmt: skip
    other_points: int = option(
        values.whole, 0, "N", "test points also run on as many seeds of another pool"
    )
    first_seed: int | None = option(
        values.whole, None, "N",
        "first seed of the pool; the others follow (default: 0; 42, which is BLIS's, with --rng reference)",
    )  # fmt: skip
    branch: int = option(
        values.at_least(0), 0, "N",
        "further calibration points, and as many test points, at which a limit is switched off (prefill_crit 0): "
        "random points hardly meet that",
    )  # fmt: skip
    own_seeds: int = option(
        values.at_least(0), 0, "N",
        "seeds of each point, drawn from a pool of --seeds that only its role uses; 0: one pool for all points",
    )  # fmt: skip
    random_state: int = option(values.at_least(0), 0, "N", "seed of the points")


class _Requests(ArmRequests, title="requests"):
    """Options for the requests of every point, and for the metrics that are kept."""

    vary: str | None = option(
        str, None, "LIST",
        "descriptors that vary too, NAME=LOW:HIGH,… of rate, arrival_cv, share_CLASS, input_scale, "
        "output_scale, prefix_share, kv_blocks, instances, token_budget",
    )  # fmt: skip
    baseline: str | None = option(
        str, None, "ARM",
        "a strategy that is run on every seed, so that a surrogate predicts differences from it and knows what "
        "a seed does",
    )  # fmt: skip
    metrics: str | None = option(
        str, None, "LIST",
        "metrics to keep, each of every class (default: latency means and percentiles, goodput, throughput, "
        "misses, rejections)",
    )  # fmt: skip
    rng: str = option(
        values.OneOf("reference", "jax"), "jax", "NAME",
        "who draws the requests: jax as blis-jax sweep does, or reference as BLIS does",
    )  # fmt: skip


class _Switches(PartOption, OutputSwitches, title="switches"):
    """The switch that only plans the points."""

    plan: bool = switch("print how many runs there would be, and stop")


class DatasetOptions(
    StrategyWord, _Sizes, _Requests, _Switches,
    title="output", command=NAME, description=_DESCRIPTION, examples=_EXAMPLES,
):  # fmt: skip
    """Options of the command."""

    usual_seeds: ClassVar[int] = NUM_SEEDS
    usual_train_seeds: ClassVar[int] = TRAIN_SEEDS
    output: str | None = option(str, None, "PATH", "store, .zarr (default: out/STRATEGY.zarr)")


@DatasetOptions.as_main
def main(options: DatasetOptions) -> int:
    """Run the command; return its exit code."""
    prepare_backend(use_cache=not options.no_cache)

    from sweeps.dataset.command import fill_dataset

    return fill_dataset(options, options.line())


if __name__ == "__main__":
    sys.exit(main())

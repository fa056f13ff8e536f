"""`blis-jax sweep`: strategies on many common seeds, compared per SLO class."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from typing import ClassVar

from blis_jax.backend import prepare_backend
from blis_jax.commands import cli, values
from blis_jax.commands.options import (
    AllSwitch,
    FigureOption,
    MeasuredOptions,
    OutputSwitches,
    option,
    seed_options,
    switch,
    words,
)
from blis_jax.commands.options.cluster_flags import InstancesOption, SlotsOption
from blis_jax.commands.options.outputs import ReportOptions
from blis_jax.commands.options.seed_options import (
    DecidingOptions,
    RequestCount,
    SeedOptions,
    seeds_option,
)
from blis_jax.commands.options.trace_flags import StudyTrace
from sweeps.runs.options import FitOption, PartOption

NAME = "blis_jax.sweep"
DEFAULT_OUTPUT = "out/sweep.zarr"
NUM_SEEDS = 256
CLOCKS = ("int32", "int64", "float64")


def _stream(text: str) -> str:
    if text == "reference":
        raise argparse.ArgumentTypeError(
            "many seeds are drawn by the JAX generator; for the requests that BLIS draws from one "
            "seed use blis-jax run --seed N"
        )
    return values.OneOf("jax")(text)


_DESCRIPTION = """\
Run strategies on the same seeds of a workload and compare them per SLO class: means with 95 %
intervals, differences paired by seed, goodput, outcomes. Without options: the ledger's baseline
and its best published strategy on 256 seeds of the `mixed` workload. Writes a Dataset and a figure.
"""
_EXAMPLES = """\
examples:
  the default comparison:
    %(prog)s --seeds 256

  a strategy of your own against the baseline, on other seeds:
    %(prog)s --strategy baseline --strategy mine.yaml --first-seed 1000 --seeds 64

  a grid over two settings of one strategy (they share one compilation):
    %(prog)s --strategy it08_opt --grid slo_age_weight=1e-5,1e-4 \\
      --grid max_num_scheduled_tokens=512:2048:256 --seeds 64 --output out/grid.zarr

  arrival rates, and a workload of your own:
    %(prog)s --workload mine.yaml --rate 1000,1500,2000 --output out/rates.zarr

exit codes: 0 done; 2 input that cannot be used, nothing was written; 3 no run finished (the
outcomes say why); 130 interrupted, what was done is saved and --resume goes on from there.
Requests are drawn by the JAX generator (--rng jax): a seed gives the same requests every time and
to every strategy, but not those that BLIS draws from that seed; blis-jax run draws those.
"""


class _Compared(FitOption, InstancesOption, RequestCount, title="what is compared"):
    """Strategies and their settings."""

    arms: tuple[str, ...] = words(
        "ARM", "what is compared, the baseline first (default: baseline and it08_opt)"
    )

    workload: str | None = option(
        str, None, "NAME", "built-in workload or a .yaml file", shown="mixed"
    )
    strategy: tuple[str, ...] = option(
        str, (), "ARM",
        "one ARM more, [LABEL=]STRATEGY[@POINT][:NAME=VALUE;…]; repeat it",
        is_repeated=True,
    )  # fmt: skip
    set: tuple[str, ...] = option(
        str, (), "KEY=VALUE",
        "a setting for all strategies, such as num_instances=4 or workload.num_requests=500; repeat it",
        is_repeated=True,
    )  # fmt: skip
    grid: tuple[str, ...] = option(
        str, (), "KEY=VALUES",
        "a setting with several values: a,b,c or start:stop:step with the stop; a;b where values have commas; "
        "repeat it", is_repeated=True,
    )  # fmt: skip
    rate: str | None = option(str, None, "R,…", "requests per second, one value or several")


class _Seeds(SeedOptions, title="seeds"):
    """Options for the seeds, and for the random stream of the requests."""

    seeds: str | None = seeds_option(f"default: {NUM_SEEDS}")
    rng: str | None = option(
        _stream, None, "NAME", "random stream of the requests; only jax draws many seeds at once", shown="jax",
    )  # fmt: skip

    @property
    def stream(self) -> str:
        """Return the name of the stream that draws requests from the seeds."""
        return "jax"


class _Output(FigureOption, ReportOptions, title="output"):
    """The option for the Dataset, beside those of figures and the report."""

    output: str | None = option(
        str, None, "PATH", "Dataset to write: .zarr, or .nc for NetCDF", shown=DEFAULT_OUTPUT
    )


class _How(SlotsOption, title="engine"):
    """The device and its programs."""

    device: str | None = option(
        values.OneOf("cpu", "gpu"), None, "NAME", "cpu or gpu (default: JAX's choice)"
    )
    clock: str = option(
        values.OneOf(*CLOCKS), "int32", "NAME", "int32 (35 minutes), int64 or float64"
    )


class _Switches(AllSwitch, PartOption, OutputSwitches, title="switches"):
    """Switches for the form of the report."""

    json: bool = switch("print everything as JSON")


class SweepOptions(
    _Compared, StudyTrace, _Seeds, DecidingOptions, MeasuredOptions, _Output, _How, _Switches,
    command=NAME, description=_DESCRIPTION, examples=_EXAMPLES,
):  # fmt: skip
    """Options of the command."""

    usual_seeds: ClassVar[int] = NUM_SEEDS
    usual_output: ClassVar[str] = DEFAULT_OUTPUT


@SweepOptions.as_main
def main(options: SweepOptions) -> int:
    """Run the command; return its exit code."""
    rule = seed_options.rule_of(options, options.seeds, options.trace)
    options.check_part(options.output, rule)

    from sweeps.sweep.plan import outputs_of_sweep, plan_of

    plan = plan_of(options, rule)
    paths = outputs_of_sweep(options, plan)
    _choose_device(options.device)
    prepare_backend(use_cache=not options.no_cache)
    _interrupt_on_termination()

    from sweeps.sweep.execution import sweep_and_report

    return sweep_and_report(options, plan, rule, paths, options.line())


def _choose_device(device: str | None) -> None:
    """Set the variable by which JAX chooses its platform when it starts."""
    if device is not None and "jax" not in sys.modules:
        os.environ["JAX_PLATFORMS"] = {"cpu": "cpu", "gpu": "cuda"}[device]


def _interrupt_on_termination() -> None:
    """Let a termination signal end the command as Ctrl-C does: what was done is saved."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    is_ours = not cli.is_called_from_python.get()
    if is_ours and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, interrupt)

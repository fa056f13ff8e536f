"""`blis-jax robustness ARM ARM…`: which strategy is best in which regime, and how surely."""

from __future__ import annotations

import sys
from typing import Any, ClassVar

from blis_jax.backend import prepare_backend
from blis_jax.commands import values
from blis_jax.commands.options import (
    AllSwitch,
    CommandOptions,
    FigureOption,
    MeasuredOptions,
    OutputSwitches,
    option,
    outputs,
    switch,
    words,
)
from blis_jax.commands.options.outputs import PageOption
from blis_jax.commands.options.seed_options import DrawnOptions, EnoughSeedsOptions, seeds_option
from blis_jax.commands.options.trace_flags import StudyTrace
from sweeps.runs.options import PartOption

NAME = "sweeps.robustness"
DEFAULT_OUTPUT = "out/robustness.zarr"
NUM_SEEDS = 8
MOST_SEEDS = 100  # of a cell where a rule adds seeds; the dataset has room for all of them
_DESCRIPTION = """\
Run strategies in many regimes (rate, burstiness, KV memory, CPU tier, instances, workload shape, cost
of a step) on the same requests. Say which strategy is best where, how sure that is, and where the order of
strategies changes. ARM is [LABEL=]STRATEGY[@POINT][:NAME=VALUE;…]; the first is what the others are compared with.
Writes a Dataset (.zarr), the recommendations (.json), a table with a row for each cell (.csv), and a map (.png).
"""
_EXAMPLES = """\
examples:
  1,024 regimes of the seven default axes, baseline against the ledger's last optimum:
    %(prog)s baseline=iter00_baseline tuned=iter08_token_budget@published

  two axes in full, three strategies, another objective:
    %(prog)s iter00_baseline iter05_simplified iter08_token_budget@published --design grid \\
      --rate 1000,2000,3000 --total-kv-blocks 2000,3000,5000 --arrival-cv 2 --kv-cpu-blocks 44000 \\
      --num-instances 8 --shape mixed --step-constant 6910.42 --objective 'goodput_rps' --output out/kv.zarr

  rates around that of a trace of your own, in eight windows of it:
    %(prog)s iter00_baseline iter05_simplified --trace trace.jsonl --slo-mix critical:0.3,sheddable:0.7 \\
      --total-kv-blocks 5000 --kv-cpu-blocks 0 --step-constant 6910.42 --output out/trace.zarr

  another question to runs that are there already (nothing is run again):
    %(prog)s baseline=iter00_baseline tuned=iter08_token_budget@published --resume \\
      --constraint 'ttft_p99_ms[standard]<=110%%'

Without --num-requests, requests come for the same time in every cell, so twice the rate means twice the
requests and not half the time. The engine settings of a cell (KV blocks, CPU tier, instances, step
constant) replace those of the arms. A strategy whose runs do not all end, or that drops requests, is
not recommended in that cell; where BLIS's own defects are what fails, ARM:corrected=true runs without
them. After a kill, --resume makes the missing cells.
"""


def _axis(help: str, also: str = "") -> Any:
    return option(str, None, "A,B,…", help, also=also)


class _Axes(CommandOptions, title="axes, values with commas"):
    """Options for the quantities that change from cell to cell; the last spelling is the axis's name."""

    rate: str | None = _axis("requests per second (500 to 3,000)")
    arrival_cv: str | None = _axis(
        "coefficients of variation of the gaps between a client's arrivals (1,2,3.5)"
    )
    total_kv_blocks: str | None = _axis(
        "KV blocks of an instance (2,000 to 132,139)", also="kv-blocks"
    )
    kv_cpu_blocks: str | None = _axis("blocks of an instance's CPU tier, 0 for none (0,2000,44000)")
    num_instances: str | None = _axis("numbers of instances (4,8,16)", also="instances")
    shape: str | None = _axis(
        "workloads: built-in names or .yaml files (mixed,nonorthogonal,asymmetric,multiprefix,multiturn)",
        also="workload",
    )
    step_constant: str | None = _axis(
        "fixed cost of a step, beta_0, in us (2000,4000,6910.42…,14000)"
    )
    signal_age: str | None = _axis(
        "us between two looks of the router at load and KV (the strategies' own)"
    )
    lora_adapter_capacity: str | None = _axis(
        "LoRA adapters that an instance holds (the strategies' own)"
    )
    adapter_zipf: str | None = _axis(
        "exponents by which the popularity of LoRA adapters falls with their place (the workload's own)"
    )

    def axes(self) -> dict[str, str]:
        """Return the values that are given, by axis."""
        values = {
            "rate": self.rate, "arrival_cv": self.arrival_cv, "kv_blocks": self.total_kv_blocks,
            "kv_cpu_blocks": self.kv_cpu_blocks, "instances": self.num_instances, "shape": self.shape,
            "step_constant": self.step_constant, "signal_age": self.signal_age,
            "lora_adapter_capacity": self.lora_adapter_capacity, "adapter_zipf": self.adapter_zipf,
        }  # fmt: skip
        return {axis: text for axis, text in values.items() if text is not None}


class _Design(CommandOptions, title="cells"):
    """Options for the cells to run."""

    design: str = option(
        values.OneOf("sobol", "latin-hypercube", "grid"), "sobol", "NAME",
        "sobol or latin-hypercube: --cells cells, spread evenly; grid: all combinations",
    )  # fmt: skip
    cells: int | None = option(
        values.whole,
        None,
        "N",
        "cells to run; fewer if the axes have fewer combinations",
        shown=1024,
    )
    random_state: int = option(
        values.whole, 0, "N", "seed of the design, the bootstrap and the trees"
    )
    reference: str | None = option(
        str, None, "NAME=VALUE,…",
        "regime whose order of strategies the others are compared with (default: the ledger's, or the nearest "
        "on the axes)",
    )  # fmt: skip


class _Requests(DrawnOptions, title="requests"):
    """Options for the requests of every cell."""

    seeds: str | None = seeds_option(f"the same in every cell; default: {NUM_SEEDS}")
    duration: float | None = option(
        values.number, None, "S", "seconds in which requests come, in every cell", shown=0.5
    )
    num_requests: int | None = option(
        values.whole, None, "N", "requests in every cell, whatever the rate, in place of --duration"
    )


class _Verdict(MeasuredOptions, title="verdict"):
    """Options for the objective and the constraints, and for how surely the best is to be found."""

    objective: str = option(
        str, "ttft_p99_ms[critical]", "METRIC", "metric to be best in, with [class] behind it"
    )
    constraint: tuple[str, ...] = option(
        str, (), "TEXT",
        "METRIC<=LIMIT or METRIC>=LIMIT; a LIMIT with % is in % of the first arm; repeat it; none for no "
        "constraint (default: ttft_p99_ms[sheddable]<=200% and tokens_per_sec>=95%)", is_repeated=True,
    )  # fmt: skip
    confidence: float = option(
        values.number, 0.95, "P", "bootstrap probability that a recommendation needs"
    )
    depth: int = option(values.whole, 3, "N", "depth of the decision tree")


class _Output(FigureOption, title="output"):
    """Options for the files to write."""

    output: str | None = option(
        str, None, "PATH", "Dataset to write, .zarr; the others lie beside it", shown=DEFAULT_OUTPUT
    )
    map_axes: str = option(str, "kv_blocks,rate", "X,Y", "axes of each heat map")
    map_facets: str = option(
        str, "shape,instances", "COLUMN,ROW", "axes that tell the heat maps apart"
    )
    differences: str | None = option(
        str, None, "PATH", "also write all metrics' paired differences to the first arm, .zarr or .nc",
    )  # fmt: skip


class _Switches(PartOption, OutputSwitches, title="switches"):
    """The switch that runs every seed in every cell."""

    every_seed: bool = switch(
        "run all seeds even of a strategy that livelocks on the first one (a livelock "
        "takes as long as hundreds of usual runs)"
    )


class RobustnessOptions(
    _Axes, _Design, _Requests, EnoughSeedsOptions, StudyTrace, _Verdict, _Output, PageOption, _Switches, AllSwitch,
    command=NAME, description=_DESCRIPTION, examples=_EXAMPLES,
):  # fmt: skip
    """Options of the command."""

    usual_seeds: ClassVar[int] = NUM_SEEDS
    usual_most_seeds: ClassVar[int] = MOST_SEEDS
    arms: tuple[str, ...] = words("ARM", "two strategies or more")
    most_seeds: int | None = option(
        values.whole, None, "N",
        f"the most seeds that --precision and --decide take in a cell (default: {MOST_SEEDS})",
    )  # fmt: skip


@RobustnessOptions.as_main
def main(options: RobustnessOptions) -> int:
    """Run the command; return its exit code."""
    output = options.output
    options.check_part(output)
    paths = outputs.outputs_of(options, DEFAULT_OUTPUT, (".zarr",), (".json", ".csv"))
    differences = None
    if options.differences is not None:
        kinds, resume = (".zarr", ".nc"), options.resume
        differences = outputs.output_path(
            options.differences, "--differences", kinds, options.overwrite, resume
        )
    prepare_backend(use_cache=not options.no_cache)

    from sweeps.robustness.command import map_regimes

    return map_regimes(options, paths, differences, options.line())


if __name__ == "__main__":
    sys.exit(main())

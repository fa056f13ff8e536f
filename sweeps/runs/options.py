"""Options and steps shared by commands that run points or arms on common seeds and can be resumed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from blis_jax.cluster.revisions import ROUTER_SIGNALS
from blis_jax.commands import values
from blis_jax.commands.options import (
    AllSwitch,
    CommandOptions,
    FigureOption,
    OutputSwitches,
    option,
    word,
)
from blis_jax.commands.options.cluster_flags import InstancesOption
from blis_jax.commands.options.seed_options import (
    CountedRequests,
    RequestCount,
    seeds_option,
)
from blis_jax.commands.options.trace_flags import StudyTrace
from blis_jax.errors import ConfigError
from blis_jax.statistics.intervals import Inference
from sweeps.runs.parts import RunPart

if TYPE_CHECKING:
    from sweeps.strategies.file import Strategy

FOLDER = "out"
NUM_SEEDS = 20
USUAL_ARM = "llm-d-default"  # what serves where no arm is given


class StrategyWord(CommandOptions):
    """Name the strategy that a command is about."""

    strategy: str | None = word(
        "STRATEGY", "name or path, with settings behind as NAME[:KEY=VALUE;…]"
    )

    def load(self) -> Strategy:
        """Return the strategy.

        Raises:
            ConfigError: no strategy is given, or its file cannot be read.
        """
        from sweeps.strategies.arms import strategy_of
        from sweeps.strategies.file import list_library

        if self.strategy is None:
            raise ConfigError(
                f"no strategy is given; give one of {', '.join(list_library())}, or a .yaml file"
            )
        return strategy_of(self.strategy)

    @property
    def stem(self) -> str:
        """Return the strategy's name as used in file names."""
        return Path((self.strategy or "").partition(":")[0]).stem


class ArmRequests(RequestCount, title="requests"):
    """Say which workload, and how many requests of it."""

    workload: str | None = option(
        str, None, "NAME", "built-in workload or .yaml file (default: the strategy's)"
    )
    rate: float | None = option(
        values.number, None, "R", "requests per second in place of the workload's"
    )


class RequestOptions(ArmRequests, CountedRequests, title="requests"):
    """Say which requests every arm serves."""

    seeds: str | None = seeds_option(f"default: {NUM_SEEDS}")
    targets: tuple[str, ...] = option(
        str, (), "LIST", "SLO targets, such as critical.ttft_ms=80,standard.ttft_ms=250 (default: the file's)",
        is_repeated=True,
    )  # fmt: skip


class FitOption(CommandOptions, title="latency coefficients"):
    """The server of a calibration."""

    coefficients_from: str | None = option(
        str, None, "FIT", "coefficients and server of all arms from a result of calibrate",
    )  # fmt: skip


class SignalsOption(CommandOptions, title="cluster"):
    """What every router sees."""

    signals: str | None = option(
        values.OneOf(*ROUTER_SIGNALS), None, "NAME",
        f"what every router sees and how it picks, in place of what the strategy says: {', '.join(ROUTER_SIGNALS)}",
    )  # fmt: skip


class StatisticsOptions(CommandOptions, title="statistics"):
    """Metrics, intervals and verdicts."""

    metrics: str | None = option(str, None, "LIST", "metrics to compare, each taken of every class")
    confidence: float = option(values.number, 0.95, "P", "confidence of intervals and verdicts")
    bootstrap: int = option(values.whole, 9999, "N", "resamples of the seeds, from 15 seeds on")
    random_state: int = option(values.at_least(0), 0, "N", "seed of the resampling")
    block_s: float | None = option(
        values.number, None, "S", "seconds of each block of arrivals that the verdict on one trace compares "
        "(default: by how long latencies stay alike)",
    )  # fmt: skip


class PartOption(CommandOptions, title="switches"):
    """A part of the runs."""

    part: RunPart | None = option(
        RunPart.read, None, "I/N", "make the I-th of N parts of the runs; blis-jax merge joins them"
    )

    def check_part(self, output: str | None, rule: object = None) -> None:
        """Refuse --part for a command that adds seeds by a rule, and a part without a file of its own."""
        if self.part is None:
            return
        if rule is not None:
            raise ConfigError(
                "--part: --precision and --decide add seeds by what was found before; leave one out"
            )
        if output is None:
            raise ConfigError("--part: each part has a file of its own; give --output, such as p1")


class ResultFile(OutputSwitches, title="output"):
    """The result; the record of the runs lies beside it."""

    output: str | None = option(str, None, "PATH", "result to write, .json")


class ResultFiles(ResultFile, FigureOption):
    """The result and its figure."""


class ComparisonOptions(
    PartOption,
    FitOption,
    InstancesOption,
    RequestOptions,
    StudyTrace,
    StatisticsOptions,
    ResultFiles,
    AllSwitch,
):
    """The common options of commands that run arms on the same requests and compare them."""


def check_statistics(confidence: float, resamples: int = 9999, most: int = 1_000_000) -> None:
    """Refuse confidences and numbers of resamples that are out of range."""
    if not 0.5 <= confidence < 1:
        raise ConfigError(f"--confidence: got {confidence:g}, allowed is 0.5 up to below 1")
    if not 99 <= resamples <= most:
        raise ConfigError(f"--bootstrap: got {resamples}, allowed is 99 to {most} resamples")


def inference_of(options: StatisticsOptions) -> Inference:
    """Return the inference that the options give: confidence and resampling."""
    return Inference(options.confidence, options.bootstrap, options.random_state)

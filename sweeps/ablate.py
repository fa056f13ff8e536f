"""`python -m sweeps.ablate ARM --against BASE`: what each component contributes, and how they interact."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from blis_jax.backend import prepare_backend
from blis_jax.commands import cli
from blis_jax.commands.options import CommandOptions, option, word
from blis_jax.commands.options.outputs import ReportOptions, outputs_of
from blis_jax.errors import ConfigError
from blis_jax.progress import phase
from sweeps.compare.ablation.factorial import masks_of
from sweeps.runs.options import FOLDER, NUM_SEEDS, ComparisonOptions, check_statistics

if TYPE_CHECKING:
    from blis_jax.files.chain import Journal
    from sweeps.compare.ablation.components import Component
    from sweeps.compare.ablation.document import Combination
    from sweeps.compare.document import ComparedSetting
    from sweeps.runs.experiment import Experiment
    from sweeps.strategies.arms import Arm

NAME = "sweeps.ablate"

_DESCRIPTION = """\
Take the difference between two arms apart. The settings in which the arms differ are grouped by
mechanism into components. Each component is switched on alone and left out alone, or all combinations
are run, on common requests. Says what each component contributes to every class, how components
interact, and which of them do nothing. Arms are written as for sweeps.compare.
"""
_EXAMPLES = """\
examples:
  what priorities and whole prompts contribute to the ledger's iteration 5, on 20 seeds:
    %(prog)s iter05_simplified --against iter00_baseline

  the record's 2 x 2 on its three seeds, the bridge counted with the priorities:
    %(prog)s iter05_simplified --against iter00_baseline --seeds 42,43,44 --design full \\
        --components "priority=priority,priority bridge;no chunks=chunks by class"

  single settings, and single scorers, as components:
    %(prog)s iter01_priority_cascade --against iter00_baseline --design pairs \\
        --components "slo scorer=routing_scorers.slo-priority;policy=priority_policy"
"""


class _Design(CommandOptions, title="design"):
    """Design."""

    against: str | None = option(str, None, "BASE", "the arm to start from")
    components: str | None = option(
        str, None, "LIST", "NAME=MEMBER,…;NAME=…: settings, single scorers or usual groups that belong together",
    )  # fmt: skip
    design: str = option(
        cli.one_of("single", "pairs", "full"), "single", "NAME",
        "single: each alone and each left out; pairs: also every two; full: all combinations",
    )  # fmt: skip


class AblateOptions(
    _Design, ComparisonOptions, ReportOptions,
    command=NAME, description=_DESCRIPTION, examples=_EXAMPLES,
):  # fmt: skip
    """Options of the command."""

    arm: str | None = word("ARM", "the arm to take apart")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return cli.run_command(NAME, _ablate, arguments)


def _ablate(arguments: Sequence[str] | None) -> int:
    began = time.monotonic()
    options = AblateOptions.read(arguments)
    if options.arm is None or options.against is None:
        missing = "ARM, the arm to take apart," if options.arm is None else "--against BASE"
        raise ConfigError(f"{missing} is missing; see --help for examples")
    check_statistics(options.confidence, options.bootstrap)

    from sweeps.compare.ablation.components import components_of
    from sweeps.strategies.arms import arm_of, as_served, on_instances

    texts = options.arm, options.against
    given = (on_instances(arm_of(text), options.instances) for text in texts)
    arm, base = as_served(given, options.trace is not None)
    components = components_of(base.config, arm.config, options.components)
    paths = outputs_of(options, f"{FOLDER}/ablate.json", beside=(".jsonl",))
    prepare_backend(use_cache=not options.no_cache)

    from sweeps.compare.ablation.document import Ablation, default_metrics, to_document
    from sweeps.compare.ablation.study import findings_of, write_reports
    from sweeps.compare.result import setting_of, write_result
    from sweeps.runs.experiment import Experiment
    from sweeps.runs.requests import requests_of, workload_of_arms

    if options.block_s is not None:
        raise ConfigError("--block-s has no meaning here; --trace-windows gives runs to compare")
    masks = masks_of(options.design, len(components))
    arms = [arm, base]
    configs = [base.config, arm.config]
    requests = requests_of(
        options, NAME, lambda: workload_of_arms(options, arms), configs, NUM_SEEDS
    )
    setting = setting_of(options, requests, arms, lambda classes, _: default_metrics(classes))
    experiment = Experiment(requests, setting.metrics, setting.targets)
    journal = experiment.journal(paths.beside(".jsonl"), "ablation")
    with journal.held(options.resume):
        combinations = _run(setting, experiment, journal, (base, arm), components, masks)

        ablation = Ablation(base, arm, components, options.design, combinations)

        with phase("judging contributions"):
            document = to_document(setting, ablation)

        def write_more() -> None:
            write_reports(document, ablation, experiment, paths, cli.command_text(NAME, arguments))

        has_figures = any(one["num_pairs"] for one in document["contributions"])
        lacking = None if has_figures else "on no seed did two combinations finish"
        seconds = time.monotonic() - began
        return write_result(document, paths, options, findings_of, write_more, seconds, lacking)


def _run(
    setting: ComparedSetting,
    experiment: Experiment,
    journal: Journal,
    arms: tuple[Arm, Arm],
    components: Sequence[Component],
    masks: Sequence[int],
) -> tuple[Combination, ...]:
    """Every combination on every seed; one that is no configuration says why."""
    from sweeps.compare.ablation.components import config_at, on
    from sweeps.compare.ablation.document import Combination

    base, arm = (one.config for one in arms)
    findings = []
    classes, is_one = setting.classes, setting.is_one_trace
    with experiment.kept_runs(NAME, journal, len(masks), classes, is_one) as kept:
        for mask in masks:
            name = " + ".join(one.name for one in on(components, mask)) or arms[0].name
            try:
                config = config_at(base, arm, components, mask)
            except ConfigError as error:
                findings.append(Combination(mask, error=str(error)))
                continue
            findings.append(Combination(mask, kept.of(config, name)))
    return tuple(findings)


if __name__ == "__main__":
    sys.exit(main())

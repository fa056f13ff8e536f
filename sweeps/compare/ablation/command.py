"""`python -m sweeps.ablate ARM --against BASE`: what each component contributes, and how they interact."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from blis_jax.backend import prepare_backend
from blis_jax.commands import cli
from blis_jax.commands.cli import Flag, Parser
from blis_jax.commands.flags import report_flags
from blis_jax.errors import ConfigError
from blis_jax.progress import phase
from sweeps.runs import options as common_options
from sweeps.runs.options import Paths

if TYPE_CHECKING:
    from blis_jax.commands.flags.report_flags import ReportPaths
    from blis_jax.files.journal import Journal
    from blis_jax.workload.source import RequestSource
    from sweeps.compare.ablation.components import Component
    from sweeps.compare.ablation.document import Combination
    from sweeps.compare.document import ComparedSetting
    from sweeps.runs.bench import Bench
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
_DESIGN = (
    Flag("against", str, None, "BASE", "the arm to start from"),
    Flag(
        "components",
        str,
        None,
        "LIST",
        "NAME=MEMBER,…;NAME=…: settings, single scorers or usual groups that belong together",
    ),
    Flag(
        "design",
        cli.one_of("single", "pairs", "full"),
        "single",
        "NAME",
        "single: each alone and each left out; pairs: also every two; full: all combinations",
    ),
)


def _parser() -> Parser:
    parser = Parser(prog=f"python -m {NAME}", description=_DESCRIPTION, epilog=_EXAMPLES)
    parser.add_argument("arm", metavar="ARM", nargs="?", help="the arm to take apart")
    parser.add_flags("design", _DESIGN)
    common_options.add_common(parser)
    parser.add_flags("report", report_flags.FLAGS)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return cli.run_command(NAME, _ablate, arguments)


def _ablate(arguments: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    given = _parser().given(words)
    if given.get("arm") is None or "against" not in given:
        missing = "ARM, the arm to take apart," if given.get("arm") is None else "--against BASE"
        raise ConfigError(f"{missing} is missing; see --help for examples")
    common_options.check_statistics(given)
    common_options.seeds_of(given)

    from sweeps.compare.ablation.components import components_of
    from sweeps.strategies.arms import arm_of, on_instances

    arm, base = (
        on_instances(arm_of(given[name]), given.get("instances")) for name in ("arm", "against")
    )
    components = components_of(base.config, arm.config, given.get("components"))
    paths = common_options.paths_of(given, "ablate")
    reports = report_flags.paths_of(given)
    prepare_backend(use_cache="no_cache" not in given)

    from sweeps.compare.ablation.document import Ablation, default_metrics, to_document
    from sweeps.compare.ablation.factorial import masks_of
    from sweeps.compare.result import setting_of

    if "block_s" in given:
        raise ConfigError("--block-s has no meaning here; --trace-windows gives runs to compare")
    masks = masks_of(given.get("design", "single"), len(components))
    spec, setting = setting_of(
        given, [arm, base], NAME, lambda classes, _: default_metrics(classes)
    )
    journal = common_options.journal_of("ablation", paths, spec, setting, setting.metrics)
    with journal.held("resume" in given):
        combinations, bench = _run(given, setting, spec, journal, (base, arm), components, masks)

        design = given.get("design", "single")
        ablation = Ablation(base, arm, components, design, combinations)

        with phase("judging contributions"):
            document = to_document(setting, ablation)

        def write_more() -> None:
            from sweeps.reports.ablation import write_reports

            write_reports(document, ablation, bench, reports, cli.command_text(NAME, words))

        return _written(given, document, paths, reports, write_more)


def _run(
    given: Mapping[str, Any],
    setting: ComparedSetting,
    spec: RequestSource,
    journal: Journal,
    arms: tuple[Arm, Arm],
    components: Sequence[Component],
    masks: Sequence[int],
) -> tuple[tuple[Combination, ...], Bench]:
    """Every combination on every seed; one that is no configuration says why."""
    from sweeps.compare.ablation.components import config_at, on
    from sweeps.compare.ablation.document import Combination
    from sweeps.compare.result import kept_on_interruption

    base, arm = (one.config for one in arms)
    progress = common_options.ArmProgress(len(masks))
    kept = common_options.kept_runs(setting, spec, setting.metrics, journal, progress)
    found = []
    with kept_on_interruption(journal, progress, NAME):
        for mask in masks:
            name = " + ".join(one.name for one in on(components, mask)) or arms[0].name
            try:
                config = config_at(base, arm, components, mask)
            except ConfigError as error:
                found.append(Combination(mask, error=str(error)))
                continue
            found.append(Combination(mask, kept.of(config, name)))
    return tuple(found), kept.bench


def _written(
    given: Mapping[str, Any],
    document: Mapping[str, Any],
    paths: Paths,
    reports: ReportPaths,
    write_reports: Callable[[], None],
) -> int:
    """The files and the words; the exit code."""
    from sweeps.compare.ablation.figure import draw
    from sweeps.compare.ablation.report import show
    from sweeps.compare.result import Outputs, write_result

    has_figures = any(one["num_pairs"] for one in document["contributions"])
    write_result(given, document, Outputs(paths, reports, draw, write_reports, show), has_figures)
    if has_figures:
        return 0
    cli.say(NAME, "on no seed did two combinations finish; see the outcomes in the result")
    return cli.EXIT_UNSUPPORTED

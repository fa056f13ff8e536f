"""`python -m sweeps.ablate ARM --against BASE`: what each component contributes, and how they interact."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from blis_jax import cli
from blis_jax.atomic_write import write_json
from blis_jax.backend import prepare_backend
from blis_jax.cli import Flag, Parser
from blis_jax.errors import ConfigError
from sweeps import common_options
from sweeps.common_options import Paths

if TYPE_CHECKING:
    from blis_jax.workload.spec import WorkloadSpec
    from sweeps.ablation import Ablation, Combination
    from sweeps.arms import Arm
    from sweeps.comparison import Setting
    from sweeps.components import Component
    from sweeps.journal import Journal

NAME = "sweeps.ablate"

_DESCRIPTION = """\
Take the difference between two arms apart: the settings in which they differ, grouped by mechanism,
are switched on alone and left out alone, or in all combinations, on common requests. Says what each
component contributes to every class, how they interact, and which do nothing. Arms are written as
for sweeps.compare.
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
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return cli.run_command(NAME, _ablate, arguments)


def _ablate(arguments: Sequence[str] | None) -> int:
    given = _parser().given(sys.argv[1:] if arguments is None else arguments)
    if given.get("arm") is None or "against" not in given:
        missing = "ARM, the arm to take apart," if given.get("arm") is None else "--against BASE"
        raise ConfigError(f"{missing} is missing; see --help for examples")
    common_options.check_statistics(given)
    seeds, stream = common_options.seeds_of(given), given.get("rng", "reference")

    from sweeps.arms import arm_of, on_instances
    from sweeps.components import components_of

    arm, base = (
        on_instances(arm_of(given[name]), given.get("instances")) for name in ("arm", "against")
    )
    components = components_of(base.config, arm.config, given.get("components"))
    paths = common_options.paths_of(given, "ablate")
    prepare_backend(use_cache="no_cache" not in given)

    from sweeps.ablation import default_metrics
    from sweeps.bench import check_seeds
    from sweeps.comparison import Setting
    from sweeps.factorial import masks_of

    masks = masks_of(given.get("design", "single"), len(components))
    check_seeds(seeds, stream)
    spec, workload = common_options.workload_for(given, [arm, base])
    classes = common_options.classes_of(spec)
    setting = Setting(
        workload=workload,
        num_requests=spec.num_requests,
        classes=classes,
        seeds=seeds,
        stream=stream,
        targets=common_options.targets_for(given, [arm, base]),
        metrics=common_options.metrics_for(given, classes) or default_metrics(classes),
        inference=common_options.inference_of(given),
    )
    journal = common_options.journal_of("ablation", paths, spec, setting, setting.metrics)
    common_options.check_existing(given, paths, journal)
    combinations = _run(given, setting, spec, journal, (base, arm), components, masks)

    from sweeps.ablation import Ablation

    design = given.get("design", "single")
    return _written(given, setting, Ablation(base, arm, components, design, combinations), paths)


def _run(
    given: Mapping[str, Any],
    setting: Setting,
    spec: WorkloadSpec,
    journal: Journal,
    arms: tuple[Arm, Arm],
    components: Sequence[Component],
    masks: Sequence[int],
) -> tuple[Combination, ...]:
    """Every combination on every seed; one that is no configuration says why."""
    from sweeps.ablation import Combination
    from sweeps.components import config_at, on

    base, arm = (one.config for one in arms)
    progress = common_options.Progress(1 if "quiet" in given else len(masks))
    kept = common_options.kept_runs(setting, spec, setting.metrics, journal, progress)
    found = []
    try:
        for mask in masks:
            name = " + ".join(one.name for one in on(components, mask)) or arms[0].name
            try:
                config = config_at(base, arm, components, mask)
            except ConfigError as error:
                found.append(Combination(mask, error=str(error)))
                continue
            found.append(Combination(mask, kept.of(config, name)))
    except KeyboardInterrupt:
        cli.say(NAME, f"{journal.path} has what was done; --resume goes on from there")
        raise
    finally:
        progress.clear()
    return tuple(found)


def _written(given: Mapping[str, Any], setting: Setting, ablation: Ablation, paths: Paths) -> int:
    """The files and the words; the exit code."""
    from sweeps.ablation import to_document

    document = to_document(setting, ablation)
    has_figures = any(one["num_pairs"] for one in document["contributions"])
    with cli.writing(paths.result):
        write_json(paths.result, document)
    written = [paths.result]
    if paths.figure is not None and has_figures:
        from sweeps.ablate_figure import draw

        with cli.writing(paths.figure):
            draw(document, paths.figure)
        written.append(paths.figure)
    if "quiet" not in given:
        from sweeps.ablate_report import show

        show(document)
        print(f"Written: {', '.join(map(str, written))}")
    if not has_figures:
        cli.say(NAME, "no seed on which two combinations came to their end; see the result")
        return cli.EXIT_UNSUPPORTED
    return 0


if __name__ == "__main__":
    sys.exit(main())

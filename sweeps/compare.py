"""`python -m sweeps.compare ARM ARM...`: strategies on common seeds, by paired differences per class."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from blis_jax import cli
from blis_jax.atomic_write import write_json
from blis_jax.backend import prepare_backend
from blis_jax.cli import Flag, Parser
from blis_jax.errors import ConfigError
from sweeps import coefficient_draws, common_options
from sweeps.common_options import Paths

if TYPE_CHECKING:
    from blis_jax.workload.spec import WorkloadSpec
    from sweeps.arms import Arm
    from sweeps.coefficient_draws import Draws
    from sweeps.comparison import Compared, Setting
    from sweeps.journal import Journal
    from sweeps.strategy_file import SuccessCriterion

NAME = "sweeps.compare"

_DESCRIPTION = """\
Compare strategies on common requests, the first arm being the reference: paired differences by seed
with intervals for every class, verdicts corrected for the number of comparisons, what TTFT is made
of, from which age a sheddable request overtakes a critical one, success criteria, and which
mechanisms did nothing. An ARM is [LABEL=]STRATEGY[@POINT][:NAME=VALUE[;NAME=VALUE...]]: a strategy
by name or .yaml file, or the .json result of a search, with parameters and settings replaced.
"""
_EXAMPLES = """\
examples:
  the ledger's best point and its baseline on 20 seeds:
    %(prog)s iter00_baseline best=iter08_token_budget@published

  on the record's three seeds, with another workload and a figure of its own:
    %(prog)s iter00_baseline iter05_simplified --workload asymmetric --seeds 42,43,44 \\
        --output out/asymmetric.json --figure out/asymmetric.png

  on the coefficients of a server of your own, with what is not known of them:
    %(prog)s iter00_baseline iter05_simplified --coefficients-from out/calibration.json

  one setting changed, its success judged by the criteria of a strategy file:
    %(prog)s iter05_simplified "t1024=iter05_simplified:max_num_scheduled_tokens=1024" \\
        --criteria iter08_token_budget
"""
_JUDGEMENT = (
    Flag("criteria", str, None, "STRATEGY", "whose success criteria judge all arms (default: own)"),
    Flag(
        "inert",
        cli.one_of("records", "mechanisms", "scorers"),
        "mechanisms",
        "HOW",
        "how to find what did nothing: records, as they are; mechanisms, also by running each arm "
        "without each of them; scorers, also without each scorer, which takes several times as long",
    ),
)


def _parser() -> Parser:
    parser = Parser(prog=f"python -m {NAME}", description=_DESCRIPTION, epilog=_EXAMPLES)
    parser.add_argument("arms", metavar="ARM", nargs="*", help="two or more; the reference first")
    parser.add_flags("judgement", _JUDGEMENT)
    parser.add_flags("latency coefficients", coefficient_draws.FLAGS)
    common_options.add_common(parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return cli.run_command(NAME, _compare, arguments)


def _compare(arguments: Sequence[str] | None) -> int:
    given = _parser().given(sys.argv[1:] if arguments is None else arguments)
    texts = given.get("arms") or []
    if len(texts) < 2:
        raise ConfigError(
            f"{len(texts)} arms are given, but two or more are needed, the reference first; see --help"
        )
    common_options.check_statistics(given)
    seeds, stream = common_options.seeds_of(given), given.get("rng", "reference")

    from sweeps.arms import arms_of

    arms = arms_of(texts, given.get("instances"))
    draws = coefficient_draws.draws_of(given)
    if draws is not None:
        arms = draws.at_fit(arms)
    paths = common_options.paths_of(given, "compare")
    prepare_backend(use_cache="no_cache" not in given)

    from sweeps.bench import check_seeds
    from sweeps.comparison import Setting, default_metrics

    criteria = _criteria(given, arms)
    check_seeds(seeds, stream)
    spec, workload = common_options.workload_for(given, arms)
    classes = common_options.classes_of(spec)
    metrics = common_options.metrics_for(given, classes)
    setting = Setting(
        workload=workload,
        num_requests=spec.num_requests,
        classes=classes,
        seeds=seeds,
        stream=stream,
        targets=common_options.targets_for(given, arms),
        metrics=metrics or default_metrics(classes, [arm.config for arm in arms]),
        inference=common_options.inference_of(given),
    )
    names = _needed(setting, criteria)
    journal = common_options.journal_of("comparison", paths, spec, setting, names)
    common_options.check_existing(given, paths, journal)
    _note_workloads(given, arms, workload)
    compared, drawn = _run(given, setting, spec, names, journal, arms, criteria, draws)
    return _written(given, setting, compared, drawn, paths)


def _criteria(
    given: Mapping[str, Any], arms: Sequence[Arm]
) -> dict[str, tuple[SuccessCriterion, ...]]:
    """Success criteria by arm: the given strategy's for all, or each arm's own; their metrics checked."""
    from sweeps.objectives import Valuation
    from sweeps.strategy_file import load_strategy

    if "criteria" in given:
        strategy = load_strategy(given["criteria"])
        Valuation(strategy)
        if not strategy.success_criteria:
            raise ConfigError(f"--criteria: {given['criteria']} has no success criteria")
        return {arm.name: strategy.success_criteria for arm in arms}
    for arm in arms:
        if arm.strategy is not None:
            Valuation(arm.strategy)
    return {arm.name: arm.strategy.success_criteria if arm.strategy else () for arm in arms}


def _needed(
    setting: Setting, criteria: Mapping[str, tuple[SuccessCriterion, ...]]
) -> tuple[str, ...]:
    """Every metric that is compared or judged; the default ones too, so that a record can be used again."""
    from sweeps.comparison import OF_CLASS, OF_RUN
    from sweeps.success_criteria import metrics_of

    usual = [f"{name}[{slo_class}]" for slo_class in setting.classes for name in OF_CLASS]
    names = [*OF_CLASS, *OF_RUN, *usual, *setting.metrics]
    for of_arm in criteria.values():
        names += metrics_of(of_arm, setting.classes)
    return tuple(dict.fromkeys(names))


def _note_workloads(given: Mapping[str, Any], arms: Sequence[Arm], workload: str) -> None:
    """Arms made for several workloads are run on one; that is worth a word."""
    named = {str(arm.strategy.workload) for arm in arms if arm.strategy is not None}
    if "workload" not in given and len(named) > 1 and "quiet" not in given:
        cli.say(NAME, f"note: the arms' files name several workloads; all arms run on {workload}")


def _run(
    given: Mapping[str, Any],
    setting: Setting,
    spec: WorkloadSpec,
    names: Sequence[str],
    journal: Journal,
    arms: Sequence[Arm],
    criteria: Mapping[str, tuple[SuccessCriterion, ...]],
    draws: Draws | None,
) -> tuple[list[Compared], dict[str, Any] | None]:
    """Every arm on every seed, without each mechanism that may be inert, and with other coefficients."""
    from sweeps.comparison import Compared
    from sweeps.inert import features_of, findings

    how = given.get("inert", "mechanisms")
    has_scorers = how == "scorers"
    count = len(arms) + sum(len(list(features_of(arm.config, has_scorers))) for arm in arms)
    count += len(arms) * len(draws.values) if draws is not None else 0
    progress = common_options.Progress(1 if "quiet" in given else count)
    kept = common_options.kept_runs(setting, spec, names, journal, progress)
    try:
        runs = [kept.of(arm.config, arm.name) for arm in arms]
        source = None if how == "records" else kept
        compared = [
            Compared(
                arm,
                of_arm,
                tuple(findings(arm.config, of_arm, source, arm.strategy, has_scorers)),
                criteria[arm.name],
            )
            for arm, of_arm in zip(arms, runs, strict=True)
        ]
        if draws is None:
            return compared, None
        state = setting.inference.random_state
        return compared, coefficient_draws.section(draws, arms, kept, setting.metrics, state)
    except KeyboardInterrupt:
        cli.say(NAME, f"{journal.path} has what was done; --resume goes on from there")
        raise
    finally:
        progress.clear()


def _written(
    given: Mapping[str, Any],
    setting: Setting,
    compared: Sequence[Compared],
    drawn: dict[str, Any] | None,
    paths: Paths,
) -> int:
    """The files and the words; the exit code."""
    from sweeps.comparison import to_document

    document = to_document(setting, compared)
    if drawn is not None:
        document["coefficients"] = drawn
    has_figures = any(one["num_pairs"] for one in document["comparisons"])
    with cli.writing(paths.result):
        write_json(paths.result, document)
    written = [paths.result]
    if paths.figure is not None and has_figures:
        from sweeps.compare_figure import draw

        with cli.writing(paths.figure):
            draw(document, paths.figure)
        written.append(paths.figure)
    if "quiet" not in given:
        from sweeps.compare_report import show

        show(document)
        print(f"Written: {', '.join(map(str, written))}")
    if not has_figures:
        cli.say(
            NAME, "no seed on which the reference and another arm came to their end; see the result"
        )
        return cli.EXIT_UNSUPPORTED
    return 0


if __name__ == "__main__":
    sys.exit(main())

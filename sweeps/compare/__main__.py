"""`python -m sweeps.compare ARM ARM...`: strategies on common seeds, by paired differences per class."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from blis_jax.backend import prepare_backend
from blis_jax.commands import cli
from blis_jax.commands.cli import Flag, Parser
from blis_jax.commands.flags import report_flags, stopping_flags
from blis_jax.errors import ConfigError
from blis_jax.progress import phase
from sweeps.compare import coefficient_draws
from sweeps.runs import options as common_options
from sweeps.runs.options import Paths

if TYPE_CHECKING:
    from blis_jax.commands.flags.report_flags import ReportPaths
    from blis_jax.files.journal import Journal
    from blis_jax.workload.source import RequestSource
    from sweeps.compare.coefficient_draws import CoefficientDraws
    from sweeps.compare.document import Compared, ComparedSetting
    from sweeps.compare.seeds import EnoughSeeds
    from sweeps.runs.measured import KeptRuns
    from sweeps.strategies.arms import Arm
    from sweeps.strategies.file import SuccessCriterion

NAME = "sweeps.compare"

_DESCRIPTION = """\
Compare strategies on common requests; the first arm is the reference. Prints, for every class, paired
differences by seed with intervals, verdicts that are corrected for the number of comparisons, the
parts of TTFT, the age from which a sheddable request overtakes a critical one, success criteria, and
the mechanisms that did nothing. An ARM is [LABEL=]STRATEGY[@POINT][:NAME=VALUE[;NAME=VALUE...]]: a strategy
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

  which router is best on a trace of your own, and by how much:
    %(prog)s --trace trace.jsonl --routers all "iter00_baseline:num_instances=4"

  one setting changed, its success judged by the criteria of a strategy file:
    %(prog)s iter05_simplified "t1024=iter05_simplified:max_num_scheduled_tokens=1024" \\
        --criteria iter08_token_budget
"""
ROUTERS_ON = "iter00_baseline"
_ROUTERS = (
    Flag("routers", str, None, "LIST", "an arm for each of these routers, all or A,B,…, on the one ARM that "
         f"is given (default: {ROUTERS_ON}), and which of them is best; round-robin is the reference"),
)  # fmt: skip
_JUDGEMENT = (
    Flag(
        "criteria",
        str,
        None,
        "STRATEGY",
        "strategy whose success criteria judge all arms (default: each arm's own)",
    ),
    Flag(
        "inert",
        cli.one_of("records", "mechanisms", "scorers"),
        "mechanisms",
        "HOW",
        "how to find mechanisms that did nothing: records looks at the runs; mechanisms also runs each "
        "arm without each mechanism; scorers also without each scorer, which takes several times as "
        "long (beside --routers: records)",
    ),
)


def _parser() -> Parser:
    parser = Parser(prog=f"python -m {NAME}", description=_DESCRIPTION, epilog=_EXAMPLES)
    parser.add_argument("arms", metavar="ARM", nargs="*", help="two or more; the reference first")
    parser.add_flags("routers", _ROUTERS)
    parser.add_flags("judgement", _JUDGEMENT)
    parser.add_flags("latency coefficients", coefficient_draws.FLAGS)
    common_options.add_common(parser)
    parser.add_flags("enough seeds", stopping_flags.FLAGS)
    parser.add_switches("enough seeds", stopping_flags.SWITCHES)
    parser.add_flags("report", report_flags.FLAGS)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return cli.run_command(NAME, _compare, arguments)


def _compare(arguments: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    given = _parser().given(words)
    common_options.check_statistics(given)
    rule, seeds = stopping_flags.rule_of(given), common_options.seeds_of(given)
    if rule is not None:
        stopping_flags.first_seeds(seeds, rule)
    arms = _arms(given)
    draws = coefficient_draws.draws_of(given)
    if draws is not None:
        arms = draws.at_fit(arms)
    paths = common_options.paths_of(given, "compare")
    reports = report_flags.paths_of(given)
    prepare_backend(use_cache="no_cache" not in given)

    from sweeps.compare.document import default_metrics, plain, to_document
    from sweeps.compare.one_trace import check_block
    from sweeps.compare.result import setting_of
    from sweeps.compare.seeds import EnoughSeeds

    criteria, configs = _criteria(given, arms), [arm.config for arm in arms]
    spec, setting = setting_of(
        given, arms, NAME, lambda classes, is_one: default_metrics(classes, configs, is_one)
    )
    check_block(given.get("block_s"), common_options.trace_in(spec))
    enough = None
    if rule is not None:
        asked = stopping_flags.names_of(given, setting.classes)
        enough = EnoughSeeds(rule, asked, setting.inference.confidence)
    names = _needed(setting, criteria, () if enough is None else enough.names)
    journal = common_options.journal_of("comparison", paths, spec, setting, names)
    with journal.held("resume" in given):
        _note_workloads(given, arms, setting.workload)
        ran = _run(given, setting, (spec, names, journal), arms, criteria, draws, enough)
        with phase("judging differences"):
            document = to_document(ran.setting, ran.compared, is_ranked="routers" in given)
        if ran.drawn is not None:
            document["coefficients"] = ran.drawn
        if ran.stopping is not None:
            document["stopping"] = plain(ran.stopping)

        def write_more() -> None:
            from sweeps.reports.comparison import write_reports

            runs = {one.arm.name: (one.arm.config, one.runs) for one in ran.compared}
            write_reports(document, runs, ran.kept.bench, reports, cli.command_text(NAME, words))

        return _written(given, document, paths, reports, write_more)


def _arms(given: Mapping[str, Any]) -> tuple[Arm, ...]:
    """The arms that are named, or one for each router on the arm that is named."""
    from sweeps.strategies.arms import arms_of
    from sweeps.strategies.routers import router_arms

    texts = given.get("arms") or []
    if "routers" not in given:
        if len(texts) < 2:
            raise ConfigError(
                f"two or more arms are needed, the reference first, or --routers all; got {len(texts)}; "
                "see --help"
            )
        return arms_of(texts, given.get("instances"))
    if len(texts) > 1:
        raise ConfigError(
            f"--routers: {len(texts)} arms are given; give one whose router is replaced, or none"
        )
    (base,) = arms_of(texts or [ROUTERS_ON], given.get("instances"))
    return router_arms(given["routers"], base)


def _criteria(
    given: Mapping[str, Any], arms: Sequence[Arm]
) -> dict[str, tuple[SuccessCriterion, ...]]:
    """Success criteria by arm: the given strategy's for all, or each arm's own; their metrics checked."""
    from sweeps.search.objectives import Valuation
    from sweeps.strategies.file import load_strategy

    if "criteria" in given:
        strategy = load_strategy(given["criteria"])
        Valuation(strategy, has_loads=True)
        if not strategy.success_criteria:
            raise ConfigError(f"--criteria: {given['criteria']} has no success criteria")
        return {arm.name: strategy.success_criteria for arm in arms}
    for arm in arms:
        if arm.strategy is not None:
            Valuation(arm.strategy, has_loads=True)
    return {arm.name: arm.strategy.success_criteria if arm.strategy else () for arm in arms}


def _needed(
    setting: ComparedSetting,
    criteria: Mapping[str, tuple[SuccessCriterion, ...]],
    asked: Sequence[str],
) -> tuple[str, ...]:
    """Every metric of single runs that is compared or judged; the default ones too, for later use of a record."""
    from blis_jax.metrics.scalars import pooled_latency
    from sweeps.compare.document import OF_CLASS, OF_RUN
    from sweeps.tracks.success_criteria import metrics_of

    usual = [f"{name}[{slo_class}]" for slo_class in setting.classes for name in OF_CLASS]
    names = [*OF_CLASS, *OF_RUN, *usual, *setting.metrics, *asked]
    for of_arm in criteria.values():
        names += metrics_of(of_arm, setting.classes)
    return tuple(name for name in dict.fromkeys(names) if pooled_latency(name) is None)


def _note_workloads(given: Mapping[str, Any], arms: Sequence[Arm], workload: str) -> None:
    """Arms made for several workloads are run on one; that is worth a word."""
    named = {str(arm.strategy.workload) for arm in arms if arm.strategy is not None}
    if not {"workload", "trace"} & set(given) and len(named) > 1 and "quiet" not in given:
        cli.say(NAME, f"note: the arms' files name several workloads; all arms run on {workload}")


class _Ran(NamedTuple):
    """All runs: the setting with the seeds that were used, arms, other coefficients, looks at the seeds."""

    setting: ComparedSetting
    compared: list[Compared]
    drawn: dict[str, Any] | None
    kept: KeptRuns
    stopping: dict[str, Any] | None


def _run(
    given: Mapping[str, Any],
    setting: ComparedSetting,
    source: tuple[RequestSource, Sequence[str], Journal],
    arms: Sequence[Arm],
    criteria: Mapping[str, tuple[SuccessCriterion, ...]],
    draws: CoefficientDraws | None,
    enough: EnoughSeeds | None,
) -> _Ran:
    """Every arm on every seed, without each mechanism that may be inert, and with other coefficients."""
    from sweeps.compare.ablation.inert import features_of, findings
    from sweeps.compare.document import Compared
    from sweeps.compare.result import kept_on_interruption

    spec, names, journal = source
    how = given.get("inert", "records" if "routers" in given else "mechanisms")
    has_scorers = how == "scorers"
    count = len(arms) + sum(len(list(features_of(arm.config, has_scorers))) for arm in arms)
    count += len(arms) * len(draws.values) if draws is not None else 0
    progress = common_options.ArmProgress(count)
    kept = common_options.kept_runs(setting, spec, names, journal, progress)
    with kept_on_interruption(journal, progress, NAME):
        if enough is None:
            runs, stopping = [kept.of(arm.config, arm.name) for arm in arms], None
        else:
            runs, looks = enough.run(arms, kept, lambda: progress.expect(len(arms)))
            stopping = enough.document(arms, looks)
            setting = enough.used(setting, kept.seeds)
        source_of_inert = None if how == "records" else kept
        compared = [
            Compared(
                arm,
                of_arm,
                tuple(findings(arm.config, of_arm, source_of_inert, arm.strategy, has_scorers)),
                criteria[arm.name],
            )
            for arm, of_arm in zip(arms, runs, strict=True)
        ]
        if draws is None:
            return _Ran(setting, compared, None, kept, stopping)
        state = setting.inference.random_state
        section = coefficient_draws.section(draws, arms, kept, setting.metrics, state)
        return _Ran(setting, compared, section, kept, stopping)


def _written(
    given: Mapping[str, Any],
    document: Mapping[str, Any],
    paths: Paths,
    reports: ReportPaths,
    write_reports: Callable[[], None],
) -> int:
    """The files and the words; the exit code."""
    from sweeps.compare.figure import draw
    from sweeps.compare.report import show
    from sweeps.compare.result import Outputs, write_result

    has_figures = any(one["difference"]["mean"] is not None for one in document["comparisons"])
    write_result(given, document, Outputs(paths, reports, draw, write_reports, show), has_figures)
    if has_figures:
        return 0
    cli.say(
        NAME,
        "on no seed did both the reference and another arm finish; see the outcomes in the result",
    )
    return cli.EXIT_UNSUPPORTED


if __name__ == "__main__":
    sys.exit(main())

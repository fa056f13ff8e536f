"""`python -m sweeps.select`: the best of several arms in one metric, with a stated probability of being right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from blis_jax.backend import prepare_backend
from blis_jax.commands import cli
from blis_jax.commands.cli import Flag, Parser
from blis_jax.commands.flags.stopping_flags import FEWEST_SEEDS
from blis_jax.errors import ConfigError
from sweeps.runs import options as common_options

if TYPE_CHECKING:
    from sweeps.compare.selection.stage import FinalQuestion
    from sweeps.strategies.arms import Arm

NAME = "sweeps.select"
MOST_SEEDS, FRESH_SEEDS, TOLERANCE = 2000, 256, 1.0
_DESCRIPTION = """\
Choose the best of several arms in one metric, with a stated probability of being right (Kim and Nelson's procedure).
All arms serve the same requests on 20 seeds, then on more, and one that is surely worse than another is run no
more. Say how small a difference does not matter: --indifference. With constraints an arm must keep them first. In the
end the winner is compared with the first arm on fresh seeds, which had no part in choosing it. Arms are written as
for sweeps.compare; --search takes the best points of a search.
"""
_EXAMPLES = """\
examples:
  which of three strategies has the shortest tail, differences below 1 ms being none:
    %(prog)s iter00_baseline iter08_token_budget@published iter13_class_lead@found --indifference 1

  the same among those that lose at most 2 %% of the tokens:
    %(prog)s iter00_baseline iter08_token_budget@published iter13_class_lead@found --indifference 1 \\
        --constraint 'output_tokens_per_s>=98%%'

  the five best points of a search, and what it began with:
    %(prog)s iter00_baseline --search out/search.json --finalists 5 --indifference 0.5
"""
CHOICE = (
    Flag("metric", str, "pooled_ttft_p99_ms[critical]", "METRIC", "metric to choose by, such as output_tokens_per_s"),
    Flag("indifference", cli.number, None, "X", "differences below it do not matter, in the metric's unit"),
    Flag("constraint", str, None, "BOUND", "METRIC<=LIMIT or METRIC>=LIMIT, the limit absolute or in % of the first "
         "arm; repeat it", is_repeated=True),
    Flag("tolerance", cli.number, TOLERANCE, "P", "a constraint missed by less than P % of its limit may "
         "count as kept"),
    Flag("confidence", cli.number, 0.95, "P", "probability of choosing rightly"),
    Flag("most-seeds", cli.whole, MOST_SEEDS, "N", "the most seeds to choose on"),
    Flag("fresh-seeds", cli.at_least(2), FRESH_SEEDS, "N", "seeds on which the winner is compared in the end"),
    Flag("search", str, None, "FILE", "result of sweeps.optimize whose best points are arms, too"),
    Flag("finalists", cli.at_least(1), 5, "N", "how many points of the search"),
)  # fmt: skip


def _parser() -> Parser:
    parser = Parser(prog=f"python -m {NAME}", description=_DESCRIPTION, epilog=_EXAMPLES)
    parser.add_argument("arms", metavar="ARM", nargs="*", help="two or more, or one and --search")
    parser.add_flags("choice", CHOICE)
    parser.add_flags("cluster", (common_options.INSTANCES,))
    parser.add_flags("requests", common_options.REQUESTS)
    parser.add_flags("output", common_options.OUTPUT[:1])
    common_options.add_switches(parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return cli.run_command(NAME, _select, arguments)


def _select(arguments: Sequence[str] | None) -> int:
    given = _parser().given(arguments)
    common_options.check_statistics(given)
    prepare_backend(use_cache="no_cache" not in given)  # the question's types are the runner's
    choice, seeds = _choice(given), common_options.seeds_of(given)
    if not FEWEST_SEEDS <= len(seeds) <= choice.most_seeds or "," in given.get("seeds", ""):
        raise ConfigError(
            f"--seeds: the first stage has {FEWEST_SEEDS} to {choice.most_seeds} seeds that follow one another; give "
            "their number"
        )
    arms = _arms(given)
    paths = common_options.paths_of({**given, "figure": "none"}, "select")

    from blis_jax.files.atomic_write import write_json
    from sweeps.compare.result import kept_on_interruption, setting_of
    from sweeps.compare.selection.report import document_of, lines_of
    from sweeps.compare.selection.stage import FinalStage

    spec, setting = setting_of(given, arms, NAME, lambda classes, is_one: choice.names)
    for name in choice.names:
        _check_class(name, setting.classes)
    journal = common_options.journal_of("selection", paths, spec, setting, choice.names)
    with journal.held("resume" in given):
        progress = common_options.ArmProgress(len(arms))
        kept = common_options.kept_runs(setting, spec, choice.names, journal, progress)
        stage = FinalStage(choice, arms, kept)
        with kept_on_interruption(journal, progress, NAME):
            chosen = stage.run(progress.expect)
            fresh = None
            if chosen.winner:
                fresh = stage.afresh(chosen.winner, given.get("fresh_seeds", FRESH_SEEDS))
        document = document_of(setting, choice, arms, chosen, fresh)
        with cli.writing(paths.result):
            write_json(paths.result, document)
        if "quiet" not in given:
            print("\n".join([*lines_of(document), f"Written: {paths.result}"]))
        return 0


def _check_class(name: str, classes: Sequence[str]) -> None:
    from blis_jax.metrics.scalars import lookup

    slo_class = lookup(name)[1]
    if slo_class is not None and slo_class not in classes:
        raise ConfigError(
            f"metric {name}: no request is of class {slo_class}; there are {', '.join(classes)}"
        )


def _choice(given: Mapping[str, Any]) -> FinalQuestion:
    from blis_jax.metrics.scalars import lookup
    from sweeps.compare.selection.stage import FinalQuestion
    from sweeps.robustness.question import read_constraint
    from sweeps.runs.metrics import our_name

    metric = our_name(given.get("metric", "pooled_ttft_p99_ms[critical]"))
    lookup(metric)
    zone = given.get("indifference")
    if zone is None or not zone > 0:
        raise ConfigError(
            "--indifference: say below what a difference does not matter, above 0 and in the metric's unit; "
            "1 is 1 ms for a latency"
        )
    tolerance = given.get("tolerance", TOLERANCE)
    if not 0 < tolerance <= 50:
        raise ConfigError(f"--tolerance: got {tolerance:g}, allowed is above 0 up to 50 %")
    most = given.get("most_seeds", MOST_SEEDS)
    if not FEWEST_SEEDS <= most <= 100_000:
        raise ConfigError(f"--most-seeds: got {most}, allowed is {FEWEST_SEEDS} to 100000")
    constraints = tuple(read_constraint(text) for text in given.get("constraint", ()))
    return FinalQuestion(
        metric, zone, constraints, tolerance / 100, given.get("confidence", 0.95), most
    )


def _arms(given: Mapping[str, Any]) -> tuple[Arm, ...]:
    from sweeps.compare.selection.finalists import finalist_texts
    from sweeps.strategies.arms import arms_of

    texts = list(given.get("arms") or [])
    if "search" in given:
        texts += finalist_texts(given["search"], given.get("finalists", 5))
    elif "finalists" in given:
        raise ConfigError("--finalists has no meaning without --search; give the search's result")
    if len(texts) < 2:
        raise ConfigError(f"two or more arms are needed, got {len(texts)}; see --help")
    return arms_of(texts, given.get("instances"))

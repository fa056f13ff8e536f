"""`blis-jax promote STRATEGY`: from a strategy that won to a change that llm-d's maintainers can review."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from blis_jax import lazy
from blis_jax.backend import prepare_backend
from blis_jax.commands import cli
from blis_jax.commands.options.seed_options import seeds_of
from blis_jax.errors import ConfigError
from blis_jax.reports import render
from blis_jax.reports.findings import Answer
from sweeps.promote import DEFAULT_TARGET, NAME, options
from sweeps.promote.promotion import (
    GateClosedError,
    count_of,
    counted,
    identity_of,
    make_promotion,
)
from sweeps.promote.store import PromotionStore, decision_path, findings_path

if TYPE_CHECKING:
    from sweeps.promote import gates, maps, stages
    from sweeps.promote.evidence import concerns, survival
else:  # `--help` and refusals do not wait for them
    gates = lazy.Module("sweeps.promote.gates")
    stages = lazy.Module("sweeps.promote.stages")
    concerns = lazy.Module("sweeps.promote.evidence.concerns")
    survival = lazy.Module("sweeps.promote.evidence.survival")
    maps = lazy.Module("sweeps.promote.maps")

EXIT_GATE_CLOSED = 3
MAPS = "maps"
NOT_AGAINST_ITSELF = (
    "the strategy is its own baseline, so nothing is promoted: "
    "promote a change of it, or name another --baseline."
)

_DESCRIPTION = """\
Make a change for llm-d out of a strategy: Go plugins compiled from the policies that were simulated, the
configuration of router and engines, hypotheses for a cluster, verdicts from benchmark reports, and the text for
reviewers. Goes on from what the folder has, and stops at each of three gates until a person has decided.
"""
_EXAMPLES = """\
examples:
  the best strategy of the ledger, with simulated evidence:
    %(prog)s iter13_class_lead@found --output out/promotion --dry-run --image quay.io/example/picker:promoted

  what a person decides at a gate, and going on:
    %(prog)s approve 1 --output out/promotion --by "A. Reviewer <a@example.org>" --reason "It is what was simulated."
    %(prog)s iter13_class_lead@found --output out/promotion --dry-run

  with reports of a cluster:
    %(prog)s iter13_class_lead@found --output out/promotion --reports results

exit codes: 0, 2 for input that cannot be used, 3 at a closed gate.
"""


class PromoteOptions(
    options.ValidateOptions, command=NAME, description=_DESCRIPTION,
    examples=f"{options.actions_text()}{_EXAMPLES}",
    usage="%(prog)s STRATEGY[@POINT] [options]\n       %(prog)s ACTION [options]",
):  # fmt: skip
    """Hold the options of a promotion from its first stage on."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return cli.run_command(NAME, _dispatch, arguments)


def _dispatch(arguments: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    actions: dict[str, Callable[[list[str]], int]] = {
        "gate": _gate,
        "approve": _decide("approve"),
        "reject": _decide("reject"),
        "status": _status,
        "survival": _survival,
        **{name: _stage(name) for name in options.STAGE_ACTIONS},
    }
    try:
        if words and words[0] in actions:
            return actions[words[0]](words[1:])
        return _whole(words)
    except GateClosedError as error:
        cli.say(NAME, str(error))
        return EXIT_GATE_CLOSED


def _whole(words: list[str]) -> int:
    promote_options = PromoteOptions.read(words)
    folder, evidence = promote_options.folder(), promote_options.evidence()
    prepare_backend(use_cache=not promote_options.no_cache)
    store = PromotionStore(folder)
    with store.writing():
        promotion = promote_options.promotion(store)
        tell = functools.partial(cli.say, NAME)
        gates.run_all(
            store,
            promotion,
            evidence,
            tell,
            may_overwrite=promote_options.overwrite,
            is_resumed=promote_options.resume,
        )
    render.show_answer(
        Answer.of(
            f"Is {promotion.name} ready for {promotion.target}?",
            f"Done: {folder}/bundle is the change, {folder}/bundle/pr-body.md its text",
            "every gate is open; pr-body.md says what was measured, and what was simulated alone.",
            "stages that were up to date were not made again.",
            f"blis-jax promote status --output {folder} says what each gate went by.",
        )
    )
    return 0


def _stage(name: str) -> Callable[[list[str]], int]:
    def run(words: list[str]) -> int:
        """Make this stage and print the paths of its files."""
        kind = options.ValidateOptions if name == "validate" else options.StageOptions
        stage_options = options.read_action(kind, name, words)
        folder = stage_options.folder()
        evidence = (
            stage_options.evidence() if isinstance(stage_options, options.ValidateOptions) else {}
        )
        if name == "validate" and not evidence:
            raise ConfigError(
                "give --reports DIR with benchmark reports, or --dry-run to make them by simulation"
            )
        prepare_backend(use_cache=not stage_options.no_cache)
        store = PromotionStore(folder)
        with store.writing():
            promotion = stage_options.promotion(store, may_be_its_baseline=name == MAPS)
            made = stages.run_stage(
                store, promotion, name, evidence, may_overwrite=stage_options.overwrite,
                is_resumed=isinstance(stage_options, options.ValidateOptions) and stage_options.resume,
            )  # fmt: skip
        paths = [str(folder / path) for path in made if not path.startswith("evidence/reports/")]
        render.show_answer(
            Answer.of(
                f"Is the stage {name} of {promotion.given} for {promotion.target} made?",
                [
                    f"Yes: {len(made)} files in {folder}.",
                    *([maps.in_words(promotion)] if name == MAPS else []),
                ],
                "the folder keeps the hashes of what the files were made of, and tells of a change.",
                "this stage alone was made.",
                NOT_AGAINST_ITSELF
                if promotion.changes_nothing
                else f"blis-jax promote status --output {folder} says which gate comes next.",
            ),
            "\n".join(paths),
        )
        return 0

    return run


def _gate(words: list[str]) -> int:
    gate_options = options.read_action(options.GateOptions, "gate", words)
    gate = gate_options.number()
    store = PromotionStore(gate_options.folder())
    with store.writing():
        findings = gates.check(store, options.promotion_of(store), gate)
        state = stages.gate_state(store, gate)
    render.show_answer(
        Answer.of(
            f"Is gate {gate} open?",
            f"gate {gate} is {state.word}: {state.detail}",
            f"gate {gate}: {counted(count_of(findings))}; {findings_path(gate)}",
            "nothing was run.",
            "make the next stage."
            if state.is_open
            else "mend what is found, or accept the gate with a reason.",
        ),
        *(["\n".join(map(gates.described, findings))] if findings else []),
    )
    return 0 if state.is_open else EXIT_GATE_CLOSED


def _decide(decision: str) -> Callable[[list[str]], int]:
    def run(words: list[str]) -> int:
        """Write this decision about a gate as a signed-off file."""
        decision_options = options.read_action(options.DecisionOptions, decision, words)
        gate, (by, reason) = decision_options.number(), decision_options.signed()
        store = PromotionStore(decision_options.folder())
        store.identity()
        with store.writing():
            gates.decide(store, gate, decision, by, reason, without_go=decision_options.without_go)
        render.show_answer(
            Answer.of(
                f"Is the decision about gate {gate} written down?",
                f"gate {gate}: {decision} by {by}; {store.path(decision_path(gate))}",
                "it holds for what the gate looked at; a change closes the gate again.",
                "nothing was run.",
                f"blis-jax promote status --output {store.folder} says what comes next.",
            )
        )
        return 0

    return run


NOT_MADE = ": not made"


def _status(words: list[str]) -> int:
    folder_options = options.read_action(options.FolderOptions, "status", words)
    store = PromotionStore(folder_options.folder())
    heading, *lines = gates.status_lines(store)
    missing = next((line.strip() for line in lines if ": closed, " in line or NOT_MADE in line), "")
    step = f"{folder_options.folder()}/bundle is the change."
    if NOT_MADE in missing:
        step = f"make it: blis-jax promote {missing.partition(':')[0]} --output {folder_options.folder()}"
    elif "no findings yet" in missing:
        step = f"look through it: blis-jax promote {missing.partition(':')[0]} --output {folder_options.folder()}"
    elif missing:
        findings = store.path(findings_path(int(missing.removeprefix("gate ")[0])))
        step = f"mend what is CRITICAL in {findings} and make the stages again, or reject."
        if gates.may_be_approved(missing):
            step = "mend what that gate found, or approve it with a reason."
    render.show_answer(
        Answer.of(
            f"Where does the promotion of {heading} stand?",
            missing or "every gate is open.",
            "hashes of all files against those that each stage was made of.",
            "nothing was run.",
            step,
        ),
        "\n".join(lines),
    )
    return 0


def _survival(words: list[str]) -> int:
    page_options = options.read_action(options.SurvivalOptions, "survival", words)
    if not page_options.strategies:
        raise ConfigError("no strategy is given; write one, such as iter13_class_lead@found")
    page = Path(page_options.output)
    if page.suffix != ".md":
        raise ConfigError(f"--output: {str(page)!r} must end in .md")
    cli.check_writable(page)
    prepare_backend(use_cache=not page_options.no_cache)
    names = [name.strip() for name in (page_options.concerns or "").split(",") if name.strip()]
    only = [concerns.concern_named(name).name for name in names]
    target = page_options.target or DEFAULT_TARGET
    promotions = [
        make_promotion(strategy, page_options.baseline, target)
        for strategy in page_options.strategies
    ]
    seeds = seeds_of(page_options, options.NUM_SURVIVAL_SEEDS)
    command = cli.command_text(f"{NAME} survival", words)
    content = {
        "promotions": list(map(identity_of, promotions)), "seeds": list(seeds), "concerns": only,
        "num_requests": page_options.num_requests,
    }  # fmt: skip
    journal = page.with_suffix(".jsonl")
    with survival.journaled(NAME, "simulating", journal, content, page_options.resume) as made:
        survival.write_page(page, promotions, seeds, page_options.num_requests, command, only, made)
    render.show_answer(
        Answer.of(
            f"Do the gains of {', '.join(promotion.name for promotion in promotions)} survive on a cluster?",
            f"Written: {page}",
            f"simulated alone, on {len(seeds)} seeds of every concern.",
            f"{len(promotions)} strategies; the page has the runs of each concern.",
            "the page says which gain is lost, and to what.",
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m sweeps.promote STRATEGY`: from a strategy that won to a change that llm-d's maintainers can review."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from blis_jax.backend import prepare_backend
from blis_jax.commands import cli
from blis_jax.commands.flags import seed_options
from blis_jax.errors import ConfigError
from sweeps.promote import options

NAME = options.NAME
EXIT_GATE_CLOSED = 3

_DESCRIPTION = """\
Make a change for llm-d out of a strategy: Go plugins compiled from the policies that were simulated, the
configuration of router and engines, hypotheses for a cluster, verdicts from benchmark reports, and the text for
reviewers. Goes on from what the folder has, and stops at each of three gates until a person has decided.
"""
_EXAMPLES = """\
examples:
  the best strategy of the ledger, with simulated evidence:
    %(prog)s iter13_class_lead@found --output out/promotion --dry-run

  what a person decides at a gate, and going on:
    %(prog)s approve 1 --output out/promotion --by "A. Reviewer" --reason "The plugin is what was simulated."
    %(prog)s iter13_class_lead@found --output out/promotion --dry-run

  with reports of a cluster:
    %(prog)s iter13_class_lead@found --output out/promotion --reports results

exit codes: 0, 2 for input that cannot be used, 3 at a closed gate.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return cli.run_command(NAME, _dispatch, arguments)


def _dispatch(arguments: Sequence[str] | None) -> int:
    from sweeps.promote.gates import GateClosedError

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
    given = options.whole_parser(_DESCRIPTION, _EXAMPLES).given(words)
    folder = options.folder_of(given)
    evidence = options.evidence_options(given)
    prepare_backend(use_cache="no_cache" not in given)
    from sweeps.promote.running import run_all
    from sweeps.promote.store import PromotionStore

    store = PromotionStore(folder)
    with store.writing():
        promotion = options.promotion_of(given, store)
        run_all(store, promotion, evidence, print, may_overwrite="overwrite" in given)
    print(f"Done: {folder}/bundle is the change, {folder}/bundle/pr-body.md its text")
    return 0


def _stage(name: str) -> Callable[[list[str]], int]:
    def run(words: list[str]) -> int:
        """Makes this one stage and prints the paths of its files."""
        given = options.parser_of(name).given(words)
        folder = options.folder_of(given)
        evidence = options.evidence_options(given) if name == "validate" else {}
        if name == "validate" and not evidence:
            raise ConfigError(
                "give --reports DIR with benchmark reports, or --dry-run to make them by simulation"
            )
        prepare_backend(use_cache="no_cache" not in given)
        from sweeps.promote.running import run_stage
        from sweeps.promote.stages import BY_NAME
        from sweeps.promote.store import PromotionStore

        store = PromotionStore(folder)
        with store.writing():
            promotion = options.promotion_of(given, store)
            made = run_stage(
                store, promotion, BY_NAME[name], evidence, may_overwrite="overwrite" in given
            )
        for path in made:
            if not path.startswith("evidence/reports/"):
                print(folder / path)
        return 0

    return run


def _gate(words: list[str]) -> int:
    given = options.parser_of("gate").given(words)
    gate = options.gate_of(given)
    from sweeps.promote.gates import check, count_of, counted, gate_state
    from sweeps.promote.running import described
    from sweeps.promote.stages import findings_path
    from sweeps.promote.store import PromotionStore

    store = PromotionStore(options.folder_of(given))
    with store.writing():
        found = check(store, options.promotion_of(given, store), gate)
        state = gate_state(store, gate)
    for one in found:
        print(described(one))
    print(f"gate {gate}: {counted(count_of(found))}; {findings_path(gate)}")
    print(f"gate {gate} is {'open' if state.is_open else 'closed'}: {state.detail}")
    return 0 if state.is_open else EXIT_GATE_CLOSED


def _decide(decision: str) -> Callable[[list[str]], int]:
    def run(words: list[str]) -> int:
        """Writes this decision about a gate as a signed-off file."""
        given = options.parser_of(decision).given(words)
        gate, (by, reason) = options.gate_of(given), options.signed(given)
        from sweeps.promote.gates import decide
        from sweeps.promote.stages import decision_path
        from sweeps.promote.store import PromotionStore

        store = PromotionStore(options.folder_of(given))
        store.identity()
        with store.writing():
            decide(store, gate, decision, by, reason)
        print(f"gate {gate}: {decision} by {by}; {store.path(decision_path(gate))}")
        return 0

    return run


def _status(words: list[str]) -> int:
    given = options.parser_of("status").given(words)
    from sweeps.promote.running import status_lines
    from sweeps.promote.store import PromotionStore

    print("\n".join(status_lines(PromotionStore(options.folder_of(given)))))
    return 0


def _survival(words: list[str]) -> int:
    given = options.parser_of("survival").given(words)
    strategies = given.get("strategies")
    if not strategies:
        raise ConfigError("no strategy is given; write one, such as iter13_class_lead@found")
    page = Path(given.get("output", "out/survival.md"))
    if page.suffix != ".md":
        raise ConfigError(f"--output: {str(page)!r} must end in .md")
    cli.check_writable(page)
    prepare_backend(use_cache="no_cache" not in given)
    from sweeps.promote.evidence.concerns import concern_named
    from sweeps.promote.evidence.survival import write_page

    names = [one.strip() for one in given.get("concerns", "").split(",") if one.strip()]
    only = [concern_named(one).name for one in names]

    target = given.get("target", options.DEFAULT_TARGET)
    baseline = given.get("baseline")
    promotions = [options.make_promotion(one, baseline, target) for one in strategies]
    seeds = seed_options.seeds_of(given, options.NUM_SURVIVAL_SEEDS, "reference")
    command = cli.command_text(f"{NAME} survival", words)
    write_page(page, promotions, seeds, given.get("num_requests"), command, only)
    print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())

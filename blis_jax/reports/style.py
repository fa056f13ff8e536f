"""Colours of strategies, SLO classes and parts of TTFT: the same in every figure and report.

Strategies have Okabe and Ito's colours, classes those of Paul Tol's muted scheme, parts pale fills:
readers with any kind of colour vision tell each set apart, and no colour means two things.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

GREY, BLUE, RED, GREEN = "#4d4d4d", "#0072b2", "#d55e00", "#009e73"
PINK, ORANGE, SKY, BLACK = "#cc79a7", "#e69f00", "#56b4e9", "#000000"

# By place among the strategies that are compared; the first is the reference.
STRATEGY_COLOURS = (GREY, BLUE, RED, GREEN, PINK, ORANGE, SKY)
# The ledger's strategies keep their colour wherever they are. A name begins with one of these, or is
# what the strategy is called in BLIS.
OF_STRATEGIES: Mapping[str, str] = {
    "baseline": GREY,
    "iter00": GREY,
    "iter01": GREEN,
    "iter03": PINK,
    "iter05": BLUE,
    "iter08": RED,
    "it08": RED,
    "iter13": ORANGE,
    "slo-gated-priority-cascade": GREEN,
    "slo-gated-admission": PINK,
    "priority-no-chunk": BLUE,
    "full-combined": RED,
    "class-lead": ORANGE,
}

ALL_REQUESTS = "all"
CLASS_COLOURS: Mapping[str, str] = {
    ALL_REQUESTS: BLACK,
    "critical": "#882255",
    "standard": "#999933",
    "sheddable": "#7788cc",
    "batch": "#44aa99",
    "background": "#ddcc77",
    "default": "#777777",
}
# Beside the colours, for eyes and printers that lack them.
CLASS_LINES: Mapping[str, str] = {"standard": "--", "sheddable": ":", "batch": "-."}
CLASS_MARKS: Mapping[str, str] = {
    "standard": "s",
    "sheddable": "^",
    "batch": "D",
    "background": "v",
}

# The groups of metrics/ttft_parts.py, and what readers call them.
PARTS: Mapping[str, tuple[str, str]] = {
    "waiting": ("#c4c4c4", "waiting in the queue"),
    "preempted service": ("#8c6bb1", "work lost to preemption"),
    "compute": ("#74a9cf", "prefill compute"),
    "chunk overhead": ("#f2c14e", "overhead of chunks"),
    "fixed": ("#5a5a5a", "fixed delays"),
}


def strategy_colours(
    names: Iterable[str], kinds: Mapping[str, str] | None = None
) -> dict[str, str]:
    """One colour a strategy: its own if the ledger knows it, else one by its place that is free.

    `kinds` says which strategy a label stands for. Beyond the palette colours come again.
    """
    wanted = list(dict.fromkeys(names))
    chosen: dict[str, str] = {}
    for name in wanted:
        own = _own(name) or _own((kinds or {}).get(name, ""))
        if own and own not in chosen.values():
            chosen[name] = own
    free = [colour for colour in STRATEGY_COLOURS if colour not in chosen.values()]
    others = [name for name in wanted if name not in chosen]
    if GREY in free and wanted[:1] != others[:1]:
        free.append(free.pop(free.index(GREY)))  # grey is the reference's
    palette = free or list(STRATEGY_COLOURS)
    for place, name in enumerate(others):
        is_free = place < len(free)
        chosen[name] = free[place] if is_free else STRATEGY_COLOURS[place % len(palette)]
    return {name: chosen[name] for name in wanted}


def _own(name: str) -> str:
    """A ledger strategy's colour; empty if it is none."""
    return next((one for start, one in OF_STRATEGIES.items() if name.startswith(start)), "")

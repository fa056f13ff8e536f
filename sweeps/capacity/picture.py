"""The picture of a capacity answer: the share of requests in time against the number of instances."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from blis_jax.reports.findings import Quantity
from blis_jax.reports.pictures import Axis, Guide, Mark, Panel, Picture, Series, Style
from blis_jax.reports.style import GUIDE_COLOUR, STRATEGY_COLOURS
from blis_jax.statistics.intervals import Estimate
from sweeps.capacity.deciding import ServiceTarget
from sweeps.capacity.finding import Smallest
from sweeps.claims.words import FAILS, MEETS, OPEN

MARKS = {
    MEETS: ("o", "keeps the target"),
    FAILS: ("X", "misses the target"),
    OPEN: ("D", "open: the runs do not tell"),
}
APART = 0.011  # of the axis, between curves at the same number of instances, so that no bar hides another
TALL, LOW = 2.6, 2.0  # inches of a panel, alone or of several


def picture(answers: Sequence[Smallest], targets: Sequence[ServiceTarget]) -> Picture:
    """Return the share of requests in time against the number of instances, one panel per target."""
    sizes = sorted({size for answer in answers for size in answer.tried})
    ticks = [(float(size), str(size)) for size in sizes]
    low, high = sizes[0] / 1.1, sizes[-1] * 1.1
    step = APART * math.log(high / low)
    panels = []
    for place, target in enumerate(targets):
        marks: list[Mark] = [
            Guide(100 * target.share, "y", Style(GUIDE_COLOUR, line="--", width=1.0))
        ]
        for at, answer in enumerate(answers):
            aside = math.exp(step * (at - (len(answers) - 1) / 2))
            marks += _curve(
                answer, place, target.share, aside, name_in(answer, answers), _colour(at)
            )
        label = "instances" if place == len(targets) - 1 else ""
        x = Axis(label, "log2", ticks=ticks, limits=(low, high))
        panels.append([Panel(marks, x, Axis("in time", "share"), target.words)])
    return Picture(
        "How many instances keep each target",
        "A point is a cluster that was tried, its bar what the runs allow at the last look: it ends above the dashed "
        "line where the target is kept. A cluster needs all targets; one that misses a target is not looked at longer, "
        "so that its other bars are long. The axis is stretched towards 100 %.",
        panels, [TALL if len(targets) == 1 else LOW] * len(targets), name="sizes",
        key=[
            *(Series([], [], Style(_colour(at), line="-"), name_in(answer, answers))
              for at, answer in enumerate(answers)),
            *(Series([], [], Style(GUIDE_COLOUR, mark), words)
              for mark, words in MARKS.values()),
        ],
    )  # fmt: skip


def _curve(
    answer: Smallest, place: int, wanted: float, aside: float, label: str, colour: str
) -> Iterator[Mark]:
    """Yield a line through the shares of one target, and a mark with an error bar for each cluster."""
    shares = {size * aside: tried.attained[place] for size, tried in answer.tried.items()}
    in_percent = {at: in_time(share) for at, share in shares.items()}
    line = Style(colour, line="-", width=1.0, opacity=0.5)
    yield Series([*shares], [share.mean for share in in_percent.values()], line, label)
    for at, share in in_percent.items():
        style = Style(colour, MARKS[_kept(shares[at], wanted)][0], width=1.2)
        yield Series([at], [share.mean], style, y_low=[share.low], y_high=[share.high])


def _kept(share: Estimate, wanted: float) -> str:
    """Return MEETS, FAILS or OPEN for one target by the bounds of its share; a cluster is judged by all targets."""
    return MEETS if share.low >= wanted else FAILS if share.high < wanted else OPEN


def _colour(at: int) -> str:
    return STRATEGY_COLOURS[at % len(STRATEGY_COLOURS)]


def name_in(answer: Smallest, answers: Sequence[Smallest]) -> str:
    """Return the words that distinguish a policy and a kind of cluster from those of the other answers."""
    policies, kinds = {each.arm.name for each in answers}, {each.family.name for each in answers}
    parts = [answer.arm.name] * (len(policies) > 1) + [answer.family.name] * (len(kinds) > 1)
    return ", ".join(parts) or answer.arm.name


def in_time(estimated: Estimate) -> Quantity:
    """Return the share in time with its bounds, in %."""
    return Quantity.of(estimated.through(lambda share: 100 * share), unit=" %", like=1.0)

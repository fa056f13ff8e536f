"""The answer as plain data and as findings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from blis_jax.files.atomic_write import finite
from blis_jax.reports.findings import Answer as FiveLines
from blis_jax.reports.findings import Cell, Findings, Quantity, Remarks, Row, Sentence, Table
from blis_jax.reports.pictures import Axis, Guide, Mark, Panel, Picture, Series, Style
from blis_jax.reports.style import GUIDE_COLOUR, STRATEGY_COLOURS
from blis_jax.reports.words import joined
from blis_jax.statistics.intervals import Estimate
from blis_jax.traces.source import STREAM
from sweeps.capacity.deciding import Decision, ServiceTarget
from sweeps.capacity.finding import Smallest
from sweeps.capacity.layouts import BOTH, Layout
from sweeps.claims.words import FAILS, MEETS, OPEN
from sweeps.strategies.arms import Arm

FORMAT = 1


def to_document(
    found: Sequence[Smallest],
    targets: Sequence[ServiceTarget],
    setting: Mapping[str, Any],
    findings: Findings,
) -> dict[str, Any]:
    """Return what JSON keeps: the question, every cluster tried, and the answers."""
    return {
        "format": FORMAT,
        **setting,
        "targets": [str(target) for target in targets],
        "clusters": [_entry(one) for one in found],
        "cheapest": _name(best) if (best := cheapest(found)) else None,
        "answer": findings.answer.to_json(),
        "lines": [
            f"{heading}: {line}" for heading, line in replace(findings.answer, time=None).lines()
        ],
    }


def _entry(found: Smallest) -> dict[str, Any]:
    size = found.num_instances
    layout = None if size is None else found.family.of(size)
    return {
        "policy": found.arm.name,
        "kind": found.family.name,
        "layout": None if layout is None else str(layout),
        "num_instances": size,
        "is_smallest_for_sure": found.is_sharp,
        "fails_at": found.fails_at,
        "num_gpus": None if layout is None else layout.num_gpus,
        "cost_per_hour": None if layout is None else layout.cost_per_hour,
        "tried": [_tried(size, one) for size, one in found.tried.items()],
    }


def _tried(size: int, decision: Decision) -> dict[str, Any]:
    shares = [
        {"share": finite(one.mean), "low": finite(one.low), "high": finite(one.high)}
        for one in decision.attained
    ]
    return {
        "num_instances": size,
        "answer": decision.answer,
        "num_seeds": decision.num_seeds,
        "in_time": shares,
    }


def cheapest(found: Sequence[Smallest]) -> Smallest | None:
    """Return the answer of lowest cost among those that meet the targets, of several the one with
    fewest instances; else None.
    """
    able = [answer for answer in found if answer.num_instances is not None]
    return min(able, key=_cost, default=None)


def _cost(found: Smallest) -> tuple[float, int]:
    size = found.num_instances or 0
    return found.family.of(size).cost_per_hour, size


def _name(found: Smallest) -> str:
    return f"{found.arm.name} on {found.family.of(found.num_instances or 1)}"


# --- findings -------------------------------------------------------------------------------------


def findings_of(
    found: Sequence[Smallest],
    targets: Sequence[ServiceTarget],
    setting: Mapping[str, Any],
    has_prices: bool = False,
    num_made: int | None = None,
) -> Findings:
    """Return the answer, what each cluster costs and what was tried; `num_made` are the runs of this call."""
    runs = sum(decision.num_seeds for one in found for decision in one.tried.values())
    made = None if num_made is None else Sentence.of(Quantity.whole(num_made), " of them made now.")
    level = f"{100 * setting['confidence']:g} %"
    more = "more --trace-windows" if setting.get("stream") == STREAM else "more --seeds"
    return Findings(
        FiveLines(
            asked=f"How few instances serve {setting['workload']} so that "
            f"{' and '.join(target.words for target in targets)}?",
            verdict=tuple(_verdicts(found, has_prices)),
            sure=Sentence.of(
                f"{level} for each answer, over the seeds that were used",
                *_shares(found, targets),
                ".",
            ),
            price=Sentence.of(Quantity.whole(runs), " runs."),
            next=_next(found, more),
            time=made,
            cluster=setting.get("cluster", ""),
        ),
        (
            Remarks(
                tuple(text for one in found for text in _open(one, more)), "Open", is_brief=True
            ),
            _cost_table(found, targets, has_prices),
            _tried_table(found, targets),
            Remarks(
                (
                    "Shares of requests in time stand with the bounds of the last look that the answer asks: a cluster "
                    "meets its targets where every lower bound reaches its target, and fails where one upper bound is "
                    "below. A cluster is looked at after 32 seeds, 64, 128 and so on, until its answer is clear.",
                )
            ),
        ),
        (picture(found, targets),),
    )


def _verdicts(found: Sequence[Smallest], has_prices: bool) -> Iterator[Sentence]:
    best = cheapest(found)
    if best is None:
        most = max(max(one.tried) for one in found)
        yield Sentence.of(
            "no cluster of at most ", Quantity.whole(most), " instances is known to do so."
        )
        return
    by = "" if len(found) == 1 else "by lowest cost: " if has_prices else "by fewest GPUs: "
    yield Sentence.of(f"{by}{_sentence(best)}.")
    for name in dict.fromkeys(one.arm.name for one in found if one.arm.name != best.arm.name):
        other = cheapest([one for one in found if one.arm.name == name])
        if other is not None:
            yield Sentence.of(f"{_sentence(other)}.")
    rivals = [(one, _open_sizes(one)) for one in found if one is not best]
    open_to = [
        f"{_name_in(one, found)} with {', '.join(map(str, cheaper))} instances"
        for one, sizes in rivals
        if (cheaper := [n for n in sizes if one.family.of(n).cost_per_hour <= _cost(best)[0]])
    ]
    if open_to:
        yield Sentence.of(f"open, and no dearer: {joined(open_to)}.")


def _name_in(one: Smallest, found: Sequence[Smallest]) -> str:
    """Return what tells a policy and a kind of cluster from the others."""
    policies, kinds = {each.arm.name for each in found}, {each.family.name for each in found}
    parts = [one.arm.name] * (len(policies) > 1) + [one.family.name] * (len(kinds) > 1)
    return ", ".join(parts) or one.arm.name


def _shares(
    found: Sequence[Smallest], targets: Sequence[ServiceTarget]
) -> Iterator[str | Quantity]:
    """Yield how many requests of each target the best cluster serves in time."""
    best = cheapest(found)
    if best is not None:
        yield f"; with {best.family.of(best.num_instances or 0)} instances, in time: "
        attained = best.tried[best.num_instances or 0].attained
        for at, (target, one) in enumerate(zip(targets, attained, strict=True)):
            yield f"{', ' * (at > 0)}{target.slo_class} by {target.limit_name} "
            yield _in_time(one)


def _next(found: Sequence[Smallest], more: str) -> str:
    if cheapest(found) is None:
        return "allow more --max-instances, or ask for less."
    if any(_open_sizes(one) for one in found):
        return f"{more} close what is open."
    return "--policy NAME asks the same of another policy; --gpus A,B of other GPUs."


def _sentence(found: Smallest) -> str:
    assert found.num_instances is not None
    layout = found.family.of(found.num_instances)
    cluster = _machines(found.arm, layout)
    few = f"{found.fails_at} {'is' if found.fails_at == 1 else 'are'} too few"
    text = f"{found.arm.name} needs {cluster}"
    if found.num_instances == found.family.least:
        return f"{text}; fewer cannot be"
    if found.is_sharp:
        return f"{text}; {few}"
    known = few if found.fails_at else "how few are too few is open"
    below = [str(size) for size in _open_sizes(found) if size < found.num_instances]
    known += f", {joined(below)} open" if below and found.fails_at else ""
    return f"{found.arm.name} does with {cluster}; {known}"


def _machines(arm: Arm, layout: Layout) -> str:
    """Return instances and GPUs: `3 instances × 2 A100-80 = 6 GPUs`."""
    parts = [
        f"{part.count}{'' if part.role == BOTH else f' {part.role}'} instance{'s' * (part.count > 1)} × "
        f"{part.hardware.num_gpus} {part.hardware.gpu or arm.config.hardware or 'GPU'}"
        for part in layout.parts
    ]
    total = layout.num_gpus
    return f"{' + '.join(parts)} = {total} GPU{'s' * (total > 1)}"


def _open_sizes(found: Smallest) -> list[int]:
    return [size for size, one in found.tried.items() if one.answer == OPEN]


def _open(found: Smallest, more: str) -> Iterator[str]:
    if sizes := _open_sizes(found):
        runs = found.tried[sizes[0]].num_seeds
        yield (
            f"{found.arm.name}, {found.family.name}: {runs} runs do not tell whether "
            f"{joined([str(size) for size in sizes])} instance{'s' * (sizes != [1])} meet the targets; give {more}."
        )


def _cost_table(
    found: Sequence[Smallest], targets: Sequence[ServiceTarget], has_prices: bool
) -> Table:
    """Return a row for each policy and kind of cluster, the cheapest first; its cost where there are prices."""
    able = sorted((one for one in found if one.num_instances is not None), key=_cost)
    unable = [one for one in found if one.num_instances is None]
    rows = [Row(_cost_cells(one)) for one in able]
    rows += [
        Row((one.arm.name, one.family.name, f"> {max(one.tried)}", *"–" * (3 + len(targets))))
        for one in unable
    ]
    columns = ("policy", "cluster", "instances", "GPUs", "cost/h", *map(str, targets), "seeds")
    cost = columns.index("cost/h")
    kept = tuple(at for at in range(len(columns)) if has_prices or at != cost)
    return Table(columns, tuple(rows), num_keys=2, brief_columns=kept)


def _cost_cells(found: Smallest) -> tuple[Cell, ...]:
    size = found.num_instances or 0
    layout, decision = found.family.of(size), found.tried[size]
    return (
        found.arm.name,
        str(layout) if layout.parts[0].hardware.gpu or len(layout.parts) > 1 else "own instances",
        Quantity.whole(size),
        Quantity.whole(layout.num_gpus),
        f"{layout.cost_per_hour:g}",
        *map(_in_time, decision.attained),
        Quantity.whole(decision.num_seeds),
    )


def _tried_table(found: Sequence[Smallest], targets: Sequence[ServiceTarget]) -> Table:
    rows = tuple(
        Row(
            (
                one.arm.name,
                one.family.name,
                Quantity.whole(size),
                *map(_in_time, decision.attained),
                Quantity.whole(decision.num_seeds),
                decision.answer,
            ),
            is_brief=False,
        )
        for one in found
        for size, decision in one.tried.items()
    )
    columns = ("policy", "kind of cluster", "instances", *map(str, targets), "seeds", "answer")
    return Table(columns, rows, "What was tried", num_keys=3)


def _in_time(one: Estimate) -> Quantity:
    """Return the share in time with its bounds, in %."""
    share, low, high = (finite(100 * end) for end in (one.mean, one.low, one.high))
    return Quantity(share, low, high, unit=" %", like=1.0)


# --- the picture ----------------------------------------------------------------------------------


def picture(found: Sequence[Smallest], targets: Sequence[ServiceTarget]) -> Picture:
    """Return the share of requests in time against the number of instances, a panel a target."""
    sizes = sorted({size for one in found for size in one.tried})
    ticks = [(float(size), str(size)) for size in sizes]
    panels = []
    for place, target in enumerate(targets):
        marks: list[Mark] = [
            Guide(100 * target.share, "y", Style(GUIDE_COLOUR, line="--", width=1.0))
        ]
        for at, one in enumerate(found):
            marks += _curve(one, place, _name_in(one, found), at)
        label = "instances" if place == len(targets) - 1 else ""
        x = Axis(label, "log2", ticks=ticks, limits=(sizes[0] / 1.1, sizes[-1] * 1.1))
        panels.append([Panel(marks, x, Axis("in time", "share"), target.words)])
    return Picture(
        "Share of requests in time against the size of the cluster",
        "Each point is a cluster that was tried, with the interval of its last look over the seeds; the dashed line "
        "is what is asked for. The axis is stretched towards 100 %, and what lies above 99.98 % is drawn there.",
        panels, [2.6] * len(targets), name="sizes",
        key=[
            *(Series([], [], Style(_colour(at), line="-"), _name_in(one, found))
              for at, one in enumerate(found)),
            *(Series([], [], Style(GUIDE_COLOUR, mark), words)
              for mark, words in MARKS.values()),
        ],
    )  # fmt: skip


def _curve(found: Smallest, place: int, label: str, at: int) -> list[Mark]:
    colour, entries = _colour(at), {size: one.attained[place] for size, one in found.tried.items()}
    shares = {size: _in_time(one) for size, one in entries.items()}
    line = Style(colour, line="-", opacity=0.6)
    marks: list[Mark] = [
        Series([*map(float, shares)], [one.mean for one in shares.values()], line, label)
    ]
    for size, decision in found.tried.items():
        one = shares[size]
        style = Style(colour, MARKS[decision.answer][0], width=1.2)
        marks.append(Series([float(size)], [one.mean], style, y_low=[one.low], y_high=[one.high]))
    return marks


def _colour(at: int) -> str:
    return STRATEGY_COLOURS[at % len(STRATEGY_COLOURS)]


MARKS = {
    MEETS: ("o", "meets all targets"),
    FAILS: ("X", "does not"),
    OPEN: ("D", "open"),
}

"""The answer as plain data and as sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sweeps.capacity.deciding import Answer, Attained, Decision
from sweeps.capacity.finding import Smallest
from sweeps.capacity.targets import ServiceTarget

FORMAT = 1


def to_document(
    found: Sequence[Smallest],
    targets: Sequence[ServiceTarget],
    setting: Mapping[str, Any],
    lines: Sequence[str],
) -> dict[str, Any]:
    """What JSON keeps: the question, every cluster tried, and the answers."""
    return {
        "format": FORMAT,
        **setting,
        "targets": [str(target) for target in targets],
        "clusters": [_entry(one) for one in found],
        "cheapest": _name(best) if (best := cheapest(found)) else None,
        "lines": list(lines),
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
        {"share": _number(one.share), "low": _number(one.low), "high": _number(one.high)}
        for one in decision.attained
    ]
    return {
        "num_instances": size,
        "answer": decision.answer.value,
        "num_seeds": decision.num_seeds,
        "in_time": shares,
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def cheapest(found: Sequence[Smallest]) -> Smallest | None:
    """The one of lowest cost among those that meet the targets, of several the one with fewest instances."""
    able = [one for one in found if one.num_instances is not None]
    return min(able, key=_cost, default=None)


def _cost(found: Smallest) -> tuple[float, int]:
    size = found.num_instances or 0
    return found.family.of(size).cost_per_hour, size


def _name(found: Smallest) -> str:
    return f"{found.arm.name} on {found.family.of(found.num_instances or 1)}"


# --- sentences ------------------------------------------------------------------------------------


def summary_lines(
    found: Sequence[Smallest],
    targets: Sequence[ServiceTarget],
    confidence: float,
    has_prices: bool,
) -> Iterator[str]:
    """The answer and the table of costs, for a terminal."""
    yield from answer_lines(found, targets, confidence, has_prices)
    rows = list(cost_rows(found))
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    for row in rows:
        cells = (text.ljust(width) for text, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def answer_lines(
    found: Sequence[Smallest],
    targets: Sequence[ServiceTarget],
    confidence: float,
    has_prices: bool,
) -> Iterator[str]:
    """The targets, the answer, and what is not known."""
    yield "Asked for: " + "; ".join(target.words for target in targets) + "."
    best = cheapest(found)
    if best is None:
        most = max(max(one.tried) for one in found)
        yield f"No cluster of at most {most} instances is known to meet this."
    else:
        by = "" if len(found) == 1 else ", by lowest cost" if has_prices else ", by fewest GPUs"
        yield f"Answer{by}: {_sentence(best)}."
    yield f"Each answer holds with {100 * confidence:g} % confidence, over the seeds that were used."
    yield from (f"Open: {text}" for one in found for text in _open(one))


def _sentence(found: Smallest) -> str:
    assert found.num_instances is not None
    layout = found.family.of(found.num_instances)
    cluster = f"{layout} instance{'s' * (layout.num_instances > 1)}"
    text = f"{found.arm.name} needs {cluster}"
    if found.num_instances == found.family.least:
        return f"{text}; fewer cannot be"
    if found.is_sharp:
        return f"{text}; {found.fails_at} are too few"
    known = f"{found.fails_at} are too few" if found.fails_at else "how few are too few is open"
    return f"{found.arm.name} does with {cluster}; {known}"


def _open(found: Smallest) -> Iterator[str]:
    sizes = [size for size, one in found.tried.items() if one.answer is Answer.OPEN]
    if sizes:
        seeds = found.tried[sizes[0]].num_seeds
        yield (
            f"{found.arm.name}, {found.family.name}: {seeds} seeds do not tell whether "
            f"{_listed(sizes)} instances meet the targets; give more --seeds."
        )


def _listed(sizes: Sequence[int]) -> str:
    return ", ".join(map(str, sizes))


COLUMNS = ("policy", "cluster", "instances", "GPUs", "cost/h", "in time", "seeds")


def cost_rows(found: Sequence[Smallest]) -> Iterator[tuple[str, ...]]:
    """A heading, then a row for each policy and kind of cluster, the cheapest first."""
    yield COLUMNS
    able = sorted((one for one in found if one.num_instances is not None), key=_cost)
    yield from map(_row, able)
    for one in found:
        if one.num_instances is None:
            yield (one.arm.name, one.family.name, f"> {max(one.tried)}", *"–" * 4)


def _row(found: Smallest) -> tuple[str, ...]:
    size = found.num_instances or 0
    layout, decision = found.family.of(size), found.tried[size]
    return (
        found.arm.name,
        str(layout) if layout.parts[0].hardware.gpu or len(layout.parts) > 1 else "own instances",
        str(size),
        str(layout.num_gpus),
        f"{layout.cost_per_hour:g}",
        ", ".join(map(in_time_words, decision.attained)),
        str(decision.num_seeds),
    )


def in_time_words(attained: Attained) -> str:
    """The share in time with its interval."""
    return f"{100 * attained.share:.2f} % [{100 * attained.low:.2f}, {100 * attained.high:.2f}]"

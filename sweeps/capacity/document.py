"""The answer of a capacity question as plain data, and as findings for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from blis_jax.files.atomic_write import finite
from blis_jax.files.formats import number_of
from blis_jax.reports.findings import Answer as FiveLines
from blis_jax.reports.findings import Cell, Findings, Quantity, Remarks, Row, Sentence, Table
from blis_jax.reports.words import joined, machines_text
from blis_jax.statistics.intervals import Estimate
from blis_jax.traces.source import STREAM
from sweeps.capacity.deciding import Decision, ServiceTarget
from sweeps.capacity.finding import Layout, Smallest
from sweeps.capacity.picture import in_time, name_in, picture
from sweeps.claims.words import OPEN
from sweeps.strategies.arms import Arm

MANY = 3  # other arms, which are then told together


def to_document(
    answers: Sequence[Smallest],
    targets: Sequence[ServiceTarget],
    setting: Mapping[str, Any],
    findings: Findings,
) -> dict[str, Any]:
    """Return the JSON document: the question, every cluster tried, and the answers."""
    return {
        "format": number_of("capacity"),
        **setting,
        "targets": [str(target) for target in targets],
        "clusters": [_entry(answer) for answer in answers],
        "cheapest": _name(best) if (best := cheapest(answers)) else None,
        "answer": findings.answer.to_json(),
        "lines": [
            f"{heading}: {line}" for heading, line in replace(findings.answer, time=None).lines()
        ],
    }


def _entry(answer: Smallest) -> dict[str, Any]:
    size = answer.num_instances
    layout = None if size is None else answer.family.of(size)
    return {
        "policy": answer.arm.name,
        "kind": answer.family.name,
        "layout": None if layout is None else str(layout),
        "num_instances": size,
        "is_smallest_for_sure": answer.is_sharp,
        "fails_at": answer.fails_at,
        "num_gpus": None if layout is None else layout.num_gpus,
        "cost_per_hour": None if layout is None else layout.cost_per_hour,
        "tried": [_tried(size, decision) for size, decision in answer.tried.items()],
    }


def _tried(size: int, decision: Decision) -> dict[str, Any]:
    shares = [
        {"share": finite(share.mean), "low": finite(share.low), "high": finite(share.high)}
        for share in decision.attained
    ]
    return {
        "num_instances": size,
        "answer": decision.answer,
        "num_seeds": decision.num_seeds,
        "in_time": shares,
    }


def cheapest(answers: Sequence[Smallest]) -> Smallest | None:
    """Return the cheapest answer that meets the targets, of equally cheap ones the one with the fewest instances; else
    None."""
    able = [answer for answer in answers if answer.num_instances is not None]
    return min(able, key=_cost, default=None)


def _cost(answer: Smallest) -> tuple[float, int]:
    size = answer.num_instances or 0
    return answer.family.of(size).cost_per_hour, size


def _likely_cost(answer: Smallest) -> tuple[float, int]:
    """Return a sort key: the cost of the size that likely meets the targets; answers without such a size come last."""
    size = answer.likely
    return (float("inf"), 0) if size is None else (answer.family.of(size).cost_per_hour, size)


def _name(answer: Smallest) -> str:
    return f"{answer.arm.name} on {answer.family.of(answer.num_instances or 1)}"


# --- findings -------------------------------------------------------------------------------------


def findings_of(
    answers: Sequence[Smallest],
    targets: Sequence[ServiceTarget],
    setting: Mapping[str, Any],
    has_prices: bool = False,
    made: tuple[int, float] | None = None,
    is_recommended: bool = False,
) -> Findings:
    """Return the answer, the cost of each cluster, and the sizes that were tried.

    `made` is the number of runs of this call and its wall time in s; `is_recommended`: the user gave GPU and model, and
    the command tries settings.
    """
    runs = sum(decision.num_seeds for smallest in answers for decision in smallest.tried.values())
    level = f"{100 * setting['confidence']:g} %"
    more = "more --trace-windows" if setting.get("stream") == STREAM else "more --seeds"
    return Findings(
        FiveLines(
            asked=f"How few instances serve {setting['workload']} so that "
            f"{' and '.join(target.words for target in targets)}?",
            verdict=tuple(_verdicts(answers, has_prices)),
            sure=Sentence.of(
                f"{level} for each answer, over the seeds that were used",
                *_shares(answers, targets),
                ".",
            ),
            price=Sentence.of(Quantity.whole(runs), " runs."),
            next=_next(answers, more, is_recommended),
            time=None if made is None else _took(runs, *made),
            cluster=setting.get("cluster", ""),
        ),
        (
            Remarks(
                tuple(text for smallest in answers for text in _open(smallest, more)),
                "Open",
                is_brief=True,
            ),
            _cost_table(answers, targets, has_prices),
            _tried_table(answers, targets),
            Remarks(
                (
                    "Shares of requests in time stand with the bounds of the last look that the answer asks: a cluster "
                    "meets its targets where every lower bound reaches its target, and fails where one upper bound is "
                    "below. A cluster is looked at after 32 seeds, 64, 128 and so on, until its answer is clear.",
                )
            ),
        ),
        (picture(answers, targets),),
    )


def _took(num_runs: int, num_made: int, seconds: float) -> Sentence:
    """Return a sentence on how many runs this call made, and how long they took."""
    of_them = (
        "All" if num_made == num_runs else Quantity.whole(num_made),
        " of them made now, in ",
    )
    return Sentence.of(*of_them, Quantity(seconds, like=10.0), " s.")


def _verdicts(answers: Sequence[Smallest], has_prices: bool) -> Iterator[Sentence]:
    best = cheapest(answers)
    if best is None and any(_open_sizes(answer) for answer in answers):
        unsure = [answer for answer in answers if _open_sizes(answer)]
        yield from map(_unsure, sorted(unsure, key=_likely_cost))
        return
    if best is None:
        yield from _nearest(answers)
        return
    by = "" if len(answers) == 1 else "by lowest cost: " if has_prices else "by fewest GPUs: "
    yield Sentence.of(f"{by}{_sentence(best)}.")
    names = dict.fromkeys(answer.arm.name for answer in answers if answer.arm.name != best.arm.name)
    cheapest_of = (
        cheapest([answer for answer in answers if answer.arm.name == name]) for name in names
    )
    others = [answer for answer in cheapest_of if answer is not None]
    if len(others) < MANY:
        yield from (Sentence.of(f"{_sentence(other)}.") for other in others)
    else:
        yield Sentence.of(f"others: {_by_gpus(others)}.")
    rivals = [(answer, _open_sizes(answer)) for answer in answers if answer is not best]
    open_to = [
        f"{name_in(answer, answers)} with {', '.join(map(str, cheaper))} instances"
        for answer, sizes in rivals
        if (cheaper := [n for n in sizes if answer.family.of(n).cost_per_hour <= _cost(best)[0]])
    ]
    if open_to:
        yield Sentence.of(f"open, and no dearer: {joined(open_to)}.")


def _nearest(answers: Sequence[Smallest]) -> Iterator[Sentence]:
    """Yield sentences on how the best of the largest clusters fared, where no cluster tried meets the targets."""
    best = max(answers, key=lambda answer: _least(answer, max(answer.tried)).mean)
    most = max(best.tried)
    yield Sentence.of(
        "no cluster of at most ", Quantity.whole(most), f" instance{'s' * (most > 1)} does; {best.arm.name} with ",
        f"{_machines(best.arm, best.family.of(most))} has ", in_time(_least(best, most)), " in time.",
    )  # fmt: skip
    if few := _as_good(best):
        yield Sentence.of(
            f"more instances do not help: {few} {'has' if few == 1 else 'have'} ",
            in_time(_least(best, few)), ".",
        )  # fmt: skip


def _least(answer: Smallest, size: int) -> Estimate:
    """Return the lowest share in time among the targets, on `size` instances."""
    return min(answer.tried[size].attained, key=lambda share: share.mean)


def _as_good(answer: Smallest) -> int | None:
    """Return the fewest instances, half the most tried or fewer, that fare as well as the most tried; else None."""
    most = max(answer.tried)
    reached = _least(answer, most).mean
    few = (
        size for size in answer.tried if 2 * size <= most and _least(answer, size).high >= reached
    )
    return min(few, default=None)


def _unsure(answer: Smallest) -> Sentence:
    """Describe the smallest cluster that met the targets in its runs, though unproven, else the smallest open one."""
    size = answer.likely or _open_sizes(answer)[0]
    cluster = _machines(answer.arm, answer.family.of(size))
    begins = "open" if answer.likely is None else "likely"
    return Sentence.of(
        f"{begins}: {answer.arm.name} with {cluster} had ", in_time(_least(answer, size)),
        " in time, in ", Quantity.whole(answer.tried[size].num_seeds), " runs; that is not sure.",
    )  # fmt: skip


def _by_gpus(answers: Sequence[Smallest]) -> str:
    """Return a text that lists arms by the number of GPUs that they need, the fewest GPUs first."""
    names: dict[int, list[str]] = {}
    for answer in sorted(answers, key=_cost):
        num_gpus = answer.family.of(answer.num_instances or 0).num_gpus
        names.setdefault(num_gpus, []).append(answer.arm.name)
    return "; ".join(
        f"{count} GPU{'s' * (count > 1)} with {joined(arms)}" for count, arms in names.items()
    )


def _shares(
    answers: Sequence[Smallest], targets: Sequence[ServiceTarget]
) -> Iterator[str | Quantity]:
    """Yield, for each target, how many requests the best cluster serves in time."""
    best = cheapest(answers)
    if best is not None:
        size = str(best.family.of(best.num_instances or 0))
        yield f"; with {size} instance{'s' * (size != '1')} "
        attained = best.tried[best.num_instances or 0].attained
        for at, (target, share) in enumerate(zip(targets, attained, strict=True)):
            yield ", " * (at > 0)
            yield in_time(share)
            yield f" of {target.slo_class} requests keep their {target.limit_name}"


def _next(answers: Sequence[Smallest], more: str, is_recommended: bool) -> str:
    if cheapest(answers) is None and any(_open_sizes(answer) for answer in answers):
        return f"{more} tell; what was tried neither meets the targets for sure, nor fails them."
    if cheapest(answers) is None:
        if any(map(_as_good, answers)):
            return "--strategy NAME asks the same of another router, which may be the limit; or ask for less."
        if not any(_least(answer, max(answer.tried)).mean for answer in answers):
            return (
                "not one request is in time, so more instances will hardly help: ask for a longer limit, or of another "
                "GPU or tp."
            )
        return "allow more --max-instances, or ask for less."
    if any(_open_sizes(answer) for answer in answers):
        return f"{more} close what is open."
    if is_recommended:
        return "--tp, --grid and --strategy try other servers; ask again with another GPU to compare it."
    return "--strategy NAME asks the same of another policy; --gpus A,B of other GPUs."


def _sentence(answer: Smallest) -> str:
    assert answer.num_instances is not None
    layout = answer.family.of(answer.num_instances)
    cluster = _machines(answer.arm, layout)
    few = f"{answer.fails_at} {'is' if answer.fails_at == 1 else 'are'} too few"
    text = f"{answer.arm.name} needs {cluster}"
    if answer.num_instances == answer.family.least:
        return f"{text}; fewer cannot be"
    if answer.is_sharp:
        return f"{text}; {few}"
    known = few if answer.fails_at else "how few are too few is open"
    below = [str(size) for size in _open_sizes(answer) if size < answer.num_instances]
    known += f", {joined(below)} open" if below and answer.fails_at else ""
    return f"{answer.arm.name} does with {cluster}; {known}"


def _machines(arm: Arm, layout: Layout) -> str:
    kinds = [
        (part.count, part.role, part.hardware.num_gpus, part.hardware.gpu or arm.config.hardware)
        for part in layout.parts
    ]
    return machines_text(kinds)


def _open_sizes(answer: Smallest) -> list[int]:
    return [size for size, decision in answer.tried.items() if decision.answer == OPEN]


def _open(answer: Smallest, more: str) -> Iterator[str]:
    if sizes := _open_sizes(answer):
        runs = answer.tried[sizes[0]].num_seeds
        yield (
            f"{answer.arm.name}, {answer.family.name}: {runs} runs do not tell whether "
            f"{joined([str(size) for size in sizes])} instance{'s' * (sizes != [1])} meet the targets; give {more}."
        )


def _cost_table(
    answers: Sequence[Smallest], targets: Sequence[ServiceTarget], has_prices: bool
) -> Table:
    """Return a table with a row per policy and kind of cluster, the cheapest first; with costs if there are prices."""
    able = sorted((answer for answer in answers if answer.num_instances is not None), key=_cost)
    unable = [answer for answer in answers if answer.num_instances is None]
    rows = [Row(_cost_cells(answer)) for answer in able]
    rows += [
        Row(
            (
                answer.arm.name,
                answer.family.name,
                *_unsure_size(answer),
                "–",
                *map(in_time, answer.tried[answer.likely or max(answer.tried)].attained),
                Quantity.whole(answer.tried[answer.likely or max(answer.tried)].num_seeds),
            )
        )
        for answer in unable
    ]
    columns = ("policy", "cluster", "instances", "GPUs", "cost/h", *map(str, targets), "seeds")
    cost = columns.index("cost/h")
    kept = tuple(at for at in range(len(columns)) if has_prices or at != cost)
    return Table(columns, tuple(rows), name="answers", num_keys=2, brief_columns=kept)


def _unsure_size(answer: Smallest) -> tuple[str, str]:
    """Return the table cells of instances and GPUs where no size is proven to meet the targets."""
    if not _open_sizes(answer):
        return f"> {max(answer.tried)}", "–"
    if answer.likely is None:
        return "open", "–"
    return f"likely {answer.likely}", f"likely {answer.family.of(answer.likely).num_gpus}"


def _cost_cells(answer: Smallest) -> tuple[Cell, ...]:
    size = answer.num_instances or 0
    layout, decision = answer.family.of(size), answer.tried[size]
    return (
        answer.arm.name,
        str(layout) if layout.parts[0].hardware.gpu or len(layout.parts) > 1 else "own instances",
        Quantity.whole(size),
        Quantity.whole(layout.num_gpus),
        f"{layout.cost_per_hour:g}",
        *map(in_time, decision.attained),
        Quantity.whole(decision.num_seeds),
    )


def _tried_table(answers: Sequence[Smallest], targets: Sequence[ServiceTarget]) -> Table:
    rows = tuple(
        Row(
            (
                answer.arm.name,
                answer.family.name,
                Quantity.whole(size),
                *map(in_time, decision.attained),
                Quantity.whole(decision.num_seeds),
                decision.answer,
            ),
            is_brief=False,
        )
        for answer in answers
        for size, decision in answer.tried.items()
    )
    columns = ("policy", "kind of cluster", "instances", *map(str, targets), "seeds", "answer")
    return Table(columns, rows, "What was tried", num_keys=3)

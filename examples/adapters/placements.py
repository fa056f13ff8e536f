"""Sixteen LoRA adapters on four instances: tail TTFT of the worst adapter by placement, slots per instance and skew.

python examples/adapters/placements.py [--choose] [--figure FILE]
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from blis_jax.backend import prepare_backend
from blis_jax.reports.drawing import save
from blis_jax.reports.pictures import Axis, Panel, Picture, Series, Style
from blis_jax.reports.style import STRATEGY_COLOURS
from blis_jax.workload.spec import with_zipf
from sweeps import Experiment, arm_of, load_workload

CAPACITIES, SKEWS = (2, 3, 4, 6, 8, 16), (0.5, 1.0, 1.5)
METRICS = ("worst_adapter_ttft_p99_ms", "mean_adapter_ttft_p99_ms", "num_adapter_loads")
AFFINITY = {
    f"{beside} + affinity {weight}": f"{scorers},lora-affinity:{weight}"
    for weight in (1, 3, 10)
    for beside, scorers in (
        ("queue", "queue-depth:2"),
        ("caches, queue, kv", "precise-prefix-cache:2,queue-depth:1,kv-utilization:1"),
    )
}
HOMES = (4, 5, 6, 8, 16)  # slots that homes may take; sixteen adapters need four
Rows = dict[tuple[float, int], Mapping[str, np.ndarray]]
CHOSEN_ON, REPORTED_ON = range(100, 108), range(200, 204)


def candidates(capacity: int) -> dict[str, str]:
    """Return the candidate arms: weights of the scorer, and numbers of slots that adapters' homes take."""
    affinity = {
        name: f"adapters_affinity:lora_adapter_capacity={capacity};routing_scorers={scorers}"
        for name, scorers in AFFINITY.items()
    }
    slots = [of for of in HOMES if of <= max(capacity, HOMES[0])]
    homes = {f"homes on {of} slots": homes_on(of, capacity) for of in slots}
    return affinity | homes


def homes_on(slots: int, capacity: int) -> str:
    """Return the arm in which adapters' homes take this many slots."""
    return (
        f"adapters_homes:lora_adapter_capacity={capacity};routing.adapters=16;routing.slots={slots}"
    )


def placements(capacity: int) -> dict[str, str]:
    """Return the arms to show: placed by load alone, by loaded adapters, and in homes without and with replicas."""
    load = f"adapters_affinity:lora_adapter_capacity={capacity};routing_scorers=queue-depth:1"
    return {
        "anywhere": load,
        "lora-affinity": f"adapters_affinity:lora_adapter_capacity={capacity}",
        "one home each": homes_on(4, capacity),
        "the hottest two everywhere": homes_on(6, capacity),
    }


def measured(arms: Sequence[str], seeds: range, zipf: float) -> dict[str, np.ndarray]:
    """Return by arm the metrics of each run `[metric, seed]`."""
    spec = with_zipf(load_workload("adapters16"), zipf)
    on = Experiment.on(spec, seeds, "reference", METRICS, configs_per_batch=len(arms))
    runs = on.run([arm_of(arm).config for arm in arms])
    return {
        arm: np.array([[run.value(name) for run in of_arm] for name in METRICS])
        for arm, of_arm in zip(arms, runs, strict=True)
    }


def choices() -> str:
    """Return every candidate's tail at each capacity, the best of its kind marked."""
    arms = {capacity: candidates(capacity) for capacity in CAPACITIES}
    found = measured([arm for own in arms.values() for arm in own.values()], CHOSEN_ON, 1.0)
    lines = []
    for capacity, own in arms.items():
        for kind in ("affinity", "homes"):
            tails = {name: found[arm][0].mean() for name, arm in own.items() if kind in name}
            best = min(tails, key=lambda name: tails[name])
            lines += [
                f"{capacity} slots, {name}: {tail:,.1f} ms{' (best)' * (name == best)}"
                for name, tail in tails.items()
            ]
    return "\n".join(lines)


def placed() -> Rows:
    """Return the metrics of every placement, by skew and slots."""
    arms = {capacity: placements(capacity) for capacity in CAPACITIES}
    texts = list(dict.fromkeys(arm for own in arms.values() for arm in own.values()))
    rows: Rows = {}
    for zipf in SKEWS:
        found = measured(texts, REPORTED_ON, zipf)
        for capacity, own in arms.items():
            rows[zipf, capacity] = {name: found[arm] for name, arm in own.items()}
    return rows


def table(rows: Rows) -> str:
    """Return the table in Markdown: the tail of the worst adapter, and loads of a run."""
    names = list(next(iter(rows.values())))
    lines = [f"| Zipf | slots | {' | '.join(names)} |", "|---" * (len(names) + 2) + "|"]
    for (zipf, capacity), by_name in rows.items():
        cells = [f"{of[0].mean():,.0f} ms, {of[2].mean():,.0f} loads" for of in by_name.values()]
        lines.append(f"| {zipf:g} | {capacity} | {' | '.join(cells)} |")
    return "\n".join(lines)


def picture(rows: Rows) -> Picture:
    """Return a panel for each skew, with a line for each placement."""
    panels = []
    for zipf in dict.fromkeys(zipf for zipf, _ in rows):
        by_slots = {slots: of for (skew, slots), of in rows.items() if skew == zipf}
        marks = []
        for name, colour in zip(next(iter(by_slots.values())), STRATEGY_COLOURS, strict=False):
            tails = [of[name][0].mean() / 1000 for of in by_slots.values()]
            marks.append(Series(list(by_slots), tails, Style(colour, marker="o", line="-"), name))
        x = Axis("adapters that an instance holds", "log", [(of, str(of)) for of in by_slots])
        y = Axis("TTFT P99 of the worst adapter, s" * (not panels), "log")
        panels.append(Panel(marks, x, y, f"popularity ∝ 1/rank^{zipf:g}"))
    return Picture(
        "With a home for each adapter, few slots are enough",
        "Sixteen LoRA adapters on four instances, 80 requests/s, means over "
        f"{len(REPORTED_ON)} seeds. Rank 1 is the adapter that is asked for most. Lines: where an adapter's requests "
        "may run.",
        [panels],
        [3.0],
        shares_y="row",
    )


def main() -> None:
    """Read the options, and print what they ask for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--choose", action="store_true", help="candidates on the seeds that choose")
    parser.add_argument("--figure", type=Path, help="draw the table into this file")
    options = parser.parse_args()
    prepare_backend()
    if options.choose:
        print(choices())
        return
    rows = placed()
    print(table(rows))
    if options.figure is not None:
        save(picture(rows), options.figure)


if __name__ == "__main__":
    main()

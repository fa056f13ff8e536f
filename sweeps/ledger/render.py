"""`ledger.md` rendered from the records: the table between its markers, and details of each row below."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from blis_jax.cluster.named_policies import draws
from blis_jax.core.outcome import WHOLE_NAMES
from blis_jax.errors import ConfigError
from blis_jax.files import chain
from blis_jax.files.atomic_write import write_text
from blis_jax.files.chain import Contents, Record
from blis_jax.files.content import Beside
from blis_jax.metrics.scalars import TOKEN_RATES
from blis_jax.policies.seeds import BY_WORKLOAD
from sweeps.claims.words import FOR_PEOPLE, MET, MISSED, NOT_MEASURED, RETROSPECTIVE, UNCLEAR
from sweeps.ledger.book import Ledger, LedgerRow, rows_of
from sweeps.ledger.result import MEAN, NO_BASIS, ROUNDED
from sweeps.ledger.trial import BASELINE, STRATEGY, config_of, levels_of, policy_seeds_of
from sweeps.tracks.problem import plain, render, signed

BEGIN, END = "<!-- ledger:begin -->", "<!-- ledger:end -->"
_ANCHOR = re.compile(r"Anchor: record (\d+), `([0-9a-f]{64})`")
_NEW_PAGE = """\
# Ledger

Every iteration, failures included. Rows are rendered from `ledger.jsonl`; do not edit them by hand, and never
remove one.

Changes are against the baseline on the same workload and seeds: TTFT P99 per SLO class, throughput in decode
tokens per second (BLIS's `tokens_per_sec`). TTFT P99 is the mean over runs of each run's P99, and that of the
requests of all runs together where *pooled* stands before it. The SLO gap is TTFT P99 of sheddable requests divided
by that of critical ones, by run. Goodput counts requests whose TTFT keeps 100 ms (critical), 250 ms (standard) or
1,000 ms (sheddable); these limits are ours.

{begin}
{end}
"""


def rendered(ledger: Ledger, contents: Contents | None = None) -> str:
    """Render the whole page from the records; the text around the markers stays as it is."""
    contents = ledger.contents() if contents is None else contents
    chain.check_sound(ledger.path, contents)
    return page_with(page_text(ledger), block(contents.records))


def page_text(ledger: Ledger) -> str:
    """Return the page's text on the disk, or that of an empty page."""
    try:
        return ledger.page.read_text(encoding="utf-8")
    except FileNotFoundError:
        return _NEW_PAGE.format(begin=BEGIN, end=END)


def page_with(page: str, text: str) -> str:
    """Return the page with the text between its markers replaced.

    Raises:
        ConfigError: the page lacks its markers, or has one twice.
    """
    begin, end = page.find(BEGIN), page.find(END)
    if begin < 0 or end < begin or page.count(BEGIN) != 1 or page.count(END) != 1:
        raise ConfigError(
            f"ledger.md needs {BEGIN} and, behind it, {END}, each once, on lines of their own"
        )
    return f"{page[:begin]}{BEGIN}\n{text}{page[end:]}"


def write(ledger: Ledger) -> Path:
    """Render and write the page while the ledger is locked against new records; return the page's path."""
    with chain.locked(ledger.path):
        contents = chain.parse(ledger.path.read_bytes(), beside=Beside.of(ledger.path))
        text = rendered(ledger, contents)
        if not ledger.page.exists() or page_text(ledger) != text:
            write_text(ledger.page, text)
    return ledger.page


def anchor_in(page: str) -> tuple[int, str] | None:
    """Return the record number and hash that the page states; None if it states none."""
    anchor = _ANCHOR.search(page)
    return (int(anchor[1]), anchor[2]) if anchor else None


def block(records: Sequence[Record]) -> str:
    """Render the part of the page between its markers."""
    rows = rows_of(records)
    return render(
        "ledger.md.j2",
        rows=[_entry(row) for row in rows if row.result is not None],
        open_rows=[row for row in rows if row.result is None],
        has_rule_1=any(record.get("rule") == 1 for record in records),
        num_records=len(records),
        anchor=records[-1] if records else None,
    )


def _entry(row: LedgerRow) -> dict[str, Any]:
    result = row.result
    assert result is not None
    return {
        "id": row.id,
        "name": row.hypothesis.name,
        "ttft": _ttft(row, result),
        "throughput": _throughput(row, result),
        "gap": _gap(result),
        "mechanism": row.hypothesis.mechanism,
        "status": _status(row, result),
        "hypothesis": row.hypothesis,
        "result": result,
        "findings": row.findings,
        "resolution": row.resolution,
        "measured": _measured(result),
        "predictions": [_prediction(prediction) for prediction in result.get("predictions", ())],
        "published": [_published(published) for published in result.get("published", ())],
        "criteria": _criteria(result),
        "runs": _runs(row, result),
    }


def _is_baseline(row: LedgerRow) -> bool:
    arms = row.hypothesis.arms
    return bool(arms) and arms[STRATEGY].hash == arms[BASELINE].hash


def _ttft(row: LedgerRow, result: Record) -> str:
    if row.hypothesis.over and row.hypothesis.claims:
        return _along(row, result)
    parts = []
    for slo_class, figures in _classes(result):
        figure = figures["ttft_p99_ms"]
        if _is_baseline(row):
            parts.append(f"{slo_class} {plain(figure['value'][0])} ms")
        else:
            parts.append(f"{slo_class} {_percent(figure['percent'])}")
    return "; ".join([*parts, *_pooled(row, result)]) or "–"


def _pooled(row: LedgerRow, result: Record) -> list[str]:
    """Return the changes of the P99 of TTFT over pooled requests, of records that have it."""
    parts = []
    for slo_class, figures in _classes(result):
        figure = figures.get("pooled_ttft_p99_ms")
        if figure is not None:
            value = (
                f"{plain(figure['value'][0])} ms"
                if _is_baseline(row)
                else _percent(figure["percent"])
            )
            parts.append(f"pooled {slo_class} {value}")
    return parts


def _along(row: LedgerRow, result: Record) -> str:
    """Return the main metric at every value of the hypothesis's setting."""
    metric, (name, values) = row.hypothesis.claims[0].metric, levels_of(row.hypothesis.over)
    means = []
    for value in values:
        figures = result["runs"][f"{name}={value}"]["figures"][metric]
        means.append("–" if None in figures else plain(sum(figures) / len(figures)))
    return f"{metric} {', '.join(means)} at {name} {', '.join(values)}"


def _classes(result: Record) -> list[tuple[str, Mapping[str, Any]]]:
    """Return by class the figures of classes with a TTFT P99; without classes those of all requests."""
    comparison = result.get("comparison", {})
    figures_by_class = [
        (name, figures) for name, figures in comparison.items() if "ttft_p99_ms" in figures
    ]
    named = [(name, figures) for name, figures in figures_by_class if name != "all"]
    order = {"critical": 0, "standard": 1, "sheddable": 2}
    return sorted(named, key=lambda pair: order.get(pair[0], 3)) or figures_by_class


def _throughput(row: LedgerRow, result: Record) -> str:
    figure = result.get("comparison", {}).get("all", {}).get("tokens_per_sec")
    if figure is None:
        return "–"
    if _is_baseline(row):
        return f"{plain(figure['value'][0], 0)} {TOKEN_RATES['tokens_per_sec']}"
    return _percent(figure["percent"])


def _gap(result: Record) -> str:
    figure = result.get("comparison", {}).get("all", {}).get("slo_gap")
    value = figure["value"][0] if figure else None
    return "–" if value is None else f"{value:.2f}"


def _percent(interval: Sequence[float | None]) -> str:
    mean, low, high = interval
    if mean is None:
        return "no figure"
    if low is None:
        return signed(mean)
    return f"{signed(mean)} [{signed(low)}, {signed(high)}]"


def _status(row: LedgerRow, result: Record) -> str:
    parts = [f"**{result['status']}**"]
    if row.hypothesis.registered == RETROSPECTIVE:
        parts.append("retrospective")
    if is_unchanged(result):
        parts.append("null: no request differs")
    parts += _failures(result)
    published = result.get("published", ())
    if published:
        num_good = sum(entry["basis"] != NO_BASIS for entry in published)
        num_mean = sum(entry["basis"] in (MEAN, ROUNDED) for entry in published)
        words = f"{num_good} of {len(published)} published figures reproduce"
        if num_mean < num_good:
            words += f", {num_mean} as means of the seeds"
        parts.append(words)
    return "; ".join(parts)


def is_unchanged(result: Record) -> bool:
    """Return whether every request had the same life as under the reference arm of the claims."""
    runs = result.get("runs", {})
    counts = runs.get(STRATEGY, {}).get("figures", {}).get("num_changed_requests", ())
    arms = {role for role in runs if "=" not in role}
    return bool(counts) and all(count == 0 for count in counts) and len(arms) > 2


def _measured(result: Record) -> str:
    """Return means and intervals in the metric's unit."""
    parts = []
    for slo_class, figures in _classes(result):
        mean, low, high = figures["ttft_p99_ms"]["value"]
        around = "" if low is None else f" [{plain(low)}, {plain(high)}]"
        parts.append(f"{slo_class} {plain(mean)} ms{around}")
    return "; ".join(parts)


def _prediction(prediction: Mapping[str, Any]) -> str:
    mean, low, high = prediction["interval"]
    figure = "" if mean is None else f"{_short(mean)} [{_short(low)}, {_short(high)}], "
    return f"`{prediction['claim']}`: {prediction['status']} ({figure}{prediction['reason']})"


def _published(claim: Mapping[str, Any]) -> str:
    measured = "no figure" if claim["measured"] is None else _short(claim["measured"])
    return f"`{claim['claim']}`: measured {measured}, {claim['basis']}"


def _short(value: float | None) -> str:
    return "–" if value is None else f"{value:.5g}".replace("-", "−")


def _criteria(result: Record) -> str:
    """Return the criteria by verdict (met, missed, …), with the classes that they were judged for."""
    judged = result.get("criteria", ())
    words = []
    for verdict in (MET, MISSED, UNCLEAR, NOT_MEASURED, FOR_PEOPLE):
        classes: dict[str, list[str]] = {}
        for judgement in judged:
            if judgement["verdict"] == verdict:
                classes.setdefault(judgement["criterion"], []).append(judgement["class"])
        names = [f"{name} ({', '.join(of)})" for name, of in classes.items()]
        words += [f"{verdict}: {', '.join(names).replace(' (all)', '')}"] if names else []
    return "; ".join(words)


def _runs(row: LedgerRow, result: Record) -> str:
    """Return a sentence on the runs that were made."""
    if not result.get("runs"):
        return result["evidence"]
    versions = result["versions"]
    seeds = _ranges(result.get("seeds", row.hypothesis.seeds)) + _stopping(result)
    seeds += _policy_seeds(row, result)
    return f"{result['evidence']}, seeds {seeds}, blis_jax {versions['blis_jax']}, JAX {versions['jax']}"


def _stopping(result: Record) -> str:
    """Return a sentence on why the row has this number of seeds, where a stopping rule decided that."""
    stopping = result.get("stopping")
    if not stopping:
        return ""
    looks = ", ".join(map(str, stopping["looks"]))
    return f" ({stopping['rule']}; looks at {looks}; then {stopping['end']})"


def _policy_seeds(row: LedgerRow, result: Record) -> str:
    """Return a sentence on how random policies were seeded, where an arm has such a policy."""
    if not any(draws(config_of(arm.settings)) for arm in row.hypothesis.arms.values()):
        return ""
    is_new = policy_seeds_of(result) == BY_WORKLOAD
    return f" (random policies drew {'anew' if is_new else 'the same'} on every seed)"


def _ranges(seeds: Sequence[int]) -> str:
    """Return seeds as text, four or more consecutive ones as first to last."""
    parts: list[list[int]] = []
    for seed in seeds:
        if parts and seed == parts[-1][-1] + 1:
            parts[-1].append(seed)
        else:
            parts.append([seed])
    return ", ".join(
        f"{part[0]} to {part[-1]}" if len(part) > 3 else ", ".join(map(str, part)) for part in parts
    )


def _failures(result: Record) -> list[str]:
    """Return, by arm, the runs that did not finish."""
    failures = []
    for role, arm in result.get("runs", {}).items():
        bad = [name for name in arm["outcomes"] if name not in WHOLE_NAMES]
        if bad:
            names = ", ".join(dict.fromkeys(bad))
            failures.append(f"{len(bad)} of {len(arm['outcomes'])} runs of the {role}: {names}")
    return failures

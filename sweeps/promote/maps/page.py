"""Maps A, B and C as Markdown, rendered from their data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sweeps.promote.maps import rows

Rows = Sequence[Mapping[str, Any]]


def table(head: Sequence[str], lines: Iterable[Sequence[object]]) -> list[str]:
    """A Markdown table; bars in cells are escaped."""

    def line(cells: Sequence[object]) -> str:
        return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"

    return [line(head), "|" + "---|" * len(head), *(line(cells) for cells in lines)]


def dictionary_page(document: Mapping[str, Any]) -> str:
    """The dictionary of one promotion: only the rows that it needs."""
    maps = document["map_a"]
    lines = [
        f"# Translation dictionary of {document['strategy']}",
        "",
        f"Target {document['target']}, baseline {document['baseline']}. Rendered from "
        "`translation-dictionary.yaml`, which has the other rows too.",
        "",
        "## Map A: interfaces",
        "",
        *_interfaces(_used(maps["interfaces"])),
        "",
        "## Map A: policies",
        "",
        *_policies(_used(maps["policies"])),
    ]
    if document["policies_from_files"]:
        names = ", ".join(f"{kind} `{name}`" for kind, name in document["policies_from_files"])
        lines += ["", f"From files, each as a generated plugin: {names}."]
    lines += ["", "## Map A: settings", "", *_settings(maps["settings"])]
    lines += [
        "",
        "## Map B: signals that the strategy reads",
        "",
        *_signals(_used(document["map_b"])),
    ]
    lines += ["", "## Map C: gaps", "", *_gaps(document["map_c"])]
    return "\n".join(lines) + "\n"


def reference_page() -> str:
    """The page of the docs: all rows."""
    lines = [
        "# Maps of a promotion",
        "",
        "What a strategy becomes in llm-d. A promotion (`sweeps/promote`) uses these rows; this page is made by "
        "`python -m sweeps.promote.maps > docs/reference/promotion-maps.md`, and a test keeps it true.",
        "",
        "Status **exact** means the same behaviour; **approximate** a known difference, which the rule names; "
        "**code** a generated plugin; **none** that llm-d has no such thing, and what is done instead.",
        "",
        "## Map A: interfaces",
        "",
        "What each kind of policy is in llm-d.",
        "",
        *_interfaces(_all(rows.interface_rows())),
        "",
        "## Map A: policies",
        "",
        *_policies(_all(rows.policy_rows())),
        "",
        "## Map A: settings",
        "",
        *_settings(_all(rows.setting_rows())),
        "",
        "## Map B: signals",
        "",
        "What a policy may read, where llm-d has it, and how fresh it is there.",
        "",
        *_signals(_all(rows.signal_rows())),
        "",
        "## Map C: gaps",
        "",
        "What one side has no model of. Each row has a hypothesis that a cluster can test.",
        "",
        *_gaps(_all(rows.gap_rows())),
    ]
    return "\n".join(lines) + "\n"


def _all(found: Iterable[Any]) -> Rows:
    return [row.model_dump(mode="json") for row in found]


def _used(found: Rows) -> Rows:
    return [row for row in found if row["used"]]


def _interfaces(found: Rows) -> list[str]:
    cells = ([row["kind"], row["interface"], row["method"], row["rule"]] for row in found)
    return table(["kind", "interface", "method or setting", "rule"], cells)


def _policies(found: Rows) -> list[str]:
    cells = (
        [f"`{row['policy']}`", row["status"], row["knob"], _rule(row, "fallback", "proposal")]
        for row in found
    )
    return table(["policy", "status", "in llm-d", "rule"], cells)


def _settings(found: Rows) -> list[str]:
    cells = (
        [
            ", ".join(f"`{name}`" for name in row["settings"]),
            row["part"],
            row["status"],
            row["knob"],
            _rule(row, "fallback"),
        ]
        for row in found
    )
    return table(["setting", "part", "status", "knob", "rule"], cells)


def _signals(found: Rows) -> list[str]:
    cells = (
        [
            f"`{row['name']}`",
            f"{row['unit']}, {row['range']}",
            row["status"],
            row["source"],
            row["metric"],
            row["here"],
            row["there"],
            row["conversion"],
            row.get("gap") or "none",
        ]
        for row in found
    )
    head = ["signal", "unit, range", "status", "in llm-d", "metric of vLLM", "fresh here"]
    return table([*head, "fresh there", "conversion", "gap"], cells)


def _gaps(found: Rows) -> list[str]:
    cells = (
        [
            f"`{row['id']}`",
            row["title"],
            row["risk"],
            row["simulated"],
            row["stress"],
            row["diagnostic"],
        ]
        for row in found
    )
    return table(
        [
            "gap",
            "what",
            "risk",
            "in our simulations",
            "stress on a cluster",
            "if the hypothesis fails",
        ],
        cells,
    )


def _rule(row: Mapping[str, Any], *others: str) -> str:
    words = {"fallback": "Without it", "proposal": "Proposal"}
    parts = [f"{words[key]}: {row[key]}" for key in others if row.get(key)]
    return ". ".join([row["rule"], *parts])

"""The reference table of policies and their numbers, made from where they are declared."""

from __future__ import annotations

from collections.abc import Iterator

from blis_jax.policies import registry
from blis_jax.policies.contract import Policy
from blis_jax.policies.numbers import FIXED, Number, numbers_of

HEAD = (
    "| policy | what it does | number | meaning | unit | default | allowed | searched | setting |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


def table(kind: str) -> str:
    """A Markdown table of the policies of one kind; a row for each number."""
    rows = [row for name in registry.NAMES[kind] for row in _rows(name, registry.find(kind, name))]
    return "\n".join([HEAD, *rows])


def page() -> str:
    """The tables of all kinds, each under the setting that names its policies."""
    parts = [f"### `{registry.SETTINGS[kind]}`\n\n{table(kind)}" for kind in registry.NAMES]
    return "\n\n".join(parts) + "\n"


def _rows(name: str, policy: Policy) -> Iterator[str]:
    what = (policy.decide.__doc__ or "").strip().splitlines()[0]
    numbers = numbers_of(policy.params)
    if not numbers:
        yield _row(name, what, *[""] * 7)
    for place, (field, one) in enumerate(numbers.items()):
        first = (f"`{name}`", what) if place == 0 else ("", "")
        yield "| " + " | ".join([*first, f"`{field}`", *_cells(name, field, one)]) + " |"


def _row(name: str, *cells: str) -> str:
    return "| " + " | ".join([f"`{name}`", *cells]) + " |"


def _cells(name: str, field: str, one: Number) -> list[str]:
    searched = one.searched
    bounds = f"{searched[0]:g} to {searched[1]:g}, {one.prior}" if searched else ""
    setting = registry.setting_of(name, field, one)
    where = "fixed by BLIS" if one.setting == FIXED else f"`{setting}`"
    whole = ", whole" if one.is_whole else ""
    return [one.meaning, one.unit, f"{one.default:g}", one.allowed + whole, bounds, where]

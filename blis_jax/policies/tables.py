"""The reference tables of all policies, in Markdown, from where they are declared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from blis_jax.core.kinds import KINDS
from blis_jax.policies import registry
from blis_jax.policies.numbers import FIXED, Number, numbers_of
from blis_jax.policies.their_names import POLICIES

HEAD = "| policy | what it does |\n|---|---|"
NUMBERS_HEAD = (
    "| policy | number | meaning | unit | default | allowed | searched | setting |\n"
    "|---|---|---|---|---|---|---|---|"
)


def page(names: Mapping[str, Iterable[str]] = registry.NAMES) -> str:
    """Return the table of kinds, then those of the policies of each kind, named as settings name them."""
    parts = (_section(kind, of_kind) for kind, of_kind in names.items() if of_kind)
    return "\n\n".join((kinds_table(), *parts)) + "\n"


def kinds_table() -> str:
    """Return what a policy of each kind decides and returns."""
    rows = (
        f"| {kind.singular} | {kind.decides} | {kind.returns} | `@{kind.decorator}` |"
        for kind in KINDS.values()
    )
    return "\n".join(("| kind | decides | returns | decorator |\n|---|---|---|---|", *rows))


def _section(kind: str, names: Iterable[str]) -> str:
    """Return the policies of one kind with what llm-d calls them, then a row for each of their numbers."""
    policies = {name: registry.find(kind, name) for name in names}
    theirs = {ours: f", `{other}`" for other, ours in POLICIES.get(kind, {}).items()}
    what = [
        f"| `{name}`{theirs.get(name, '')} | {(policy.decide.__doc__ or '').strip().splitlines()[0]} |"
        for name, policy in policies.items()
    ]
    numbers = [
        number_row(kind, name, field, one)
        for name, policy in policies.items()
        for field, one in numbers_of(policy.params).items()
    ]
    parts = [f"## `{KINDS[kind].setting}`", "\n".join([HEAD, *what])]
    return "\n\n".join(parts + (["\n".join([NUMBERS_HEAD, *numbers])] if numbers else []))


def number_row(kind: str, name: str, field: str, one: Number) -> str:
    """Return the row of one number of a policy; of one from a file with what gives the number."""
    searched = one.searched
    bounds = f"{searched[0]:g} to {searched[1]:g}, {one.prior}" if searched else ""
    short_name = name.rpartition(":")[2]
    if short_name == name:
        setting = registry.setting_of(name, field, one)
    elif one.setting in registry.settings():
        setting = one.setting
    else:
        setting = f"{f'{kind}.{short_name}' if kind == 'scorer' else kind}.{field}"
    where = "fixed by BLIS" if one.setting == FIXED else f"`{setting}`"
    allowed = one.allowed + ", whole" * one.is_whole
    cells = (one.meaning, one.unit, f"{one.default:g}", allowed, bounds, where)
    return " | ".join([f"| `{short_name}`", f"`{field}`", *cells]) + " |"

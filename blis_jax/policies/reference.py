"""The reference tables of policies and their numbers, made from where they are declared."""

from __future__ import annotations

from blis_jax.policies import registry
from blis_jax.policies.numbers import FIXED, Number, numbers_of

HEAD = "| policy | what it does |\n|---|---|"
NUMBERS_HEAD = (
    "| policy | number | meaning | unit | default | allowed | searched | setting |\n"
    "|---|---|---|---|---|---|---|---|"
)


def page() -> str:
    """The tables of all kinds, each under the setting that names its policies."""
    return "\n\n".join(_section(kind) for kind, names in registry.NAMES.items() if names) + "\n"


def _section(kind: str) -> str:
    """The policies of one kind, then a row for each of their numbers."""
    policies = {name: registry.find(kind, name) for name in registry.NAMES[kind]}
    what = [
        f"| `{name}` | {(policy.decide.__doc__ or '').strip().splitlines()[0]} |"
        for name, policy in policies.items()
    ]
    numbers = [
        number_row(name, field, one)
        for name, policy in policies.items()
        for field, one in numbers_of(policy.params).items()
    ]
    parts = [f"## `{registry.SETTINGS[kind]}`", "\n".join([HEAD, *what])]
    return "\n\n".join(parts + (["\n".join([NUMBERS_HEAD, *numbers])] if numbers else []))


def number_row(name: str, field: str, one: Number) -> str:
    """The row of one number of a policy."""
    searched = one.searched
    bounds = f"{searched[0]:g} to {searched[1]:g}, {one.prior}" if searched else ""
    setting = registry.setting_of(name, field, one)
    where = "fixed by BLIS" if one.setting == FIXED else f"`{setting}`"
    allowed = one.allowed + ", whole" * one.is_whole
    cells = (one.meaning, one.unit, f"{one.default:g}", allowed, bounds, where)
    return " | ".join([f"| `{name}`", f"`{field}`", *cells]) + " |"

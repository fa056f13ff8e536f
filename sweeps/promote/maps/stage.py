"""Stage 1: the dictionary of a promotion, as YAML and as a page rendered from it."""

from __future__ import annotations

import re
from typing import Any

from sweeps.promote.maps import page, rows
from sweeps.promote.maps.plain import yaml_text
from sweeps.promote.maps.reads import CONTEXTS, policies_of, signals_of
from sweeps.promote.promotion import Files, Promotion

DICTIONARY = "translation-dictionary.yaml"
PAGE = "translation-dictionary.md"


def maps_files(promotion: Promotion) -> Files:
    """`translation-dictionary.yaml` and `.md`: all rows, with those that the strategy needs marked."""
    document = dictionary(promotion)
    return {DICTIONARY: yaml_text(document), PAGE: page.dictionary_page(document)}


def dictionary(promotion: Promotion) -> dict[str, Any]:
    """Maps A, B and C as plain data; `used` marks what the strategy has, reads or meets."""
    config = promotion.arm.config
    kinds = {kind for kind, _ in policies_of(config)}
    names = named_policies(promotion)
    read = set(signals_of(config))
    return {
        "strategy": promotion.given,
        "baseline": promotion.baseline.name,
        "target": promotion.target,
        "policies_from_files": sorted(
            (kind, without_folders(name))
            for kind, name in names
            if rows.policy_row(kind, name) is None
        ),
        "map_a": {
            "interfaces": [
                _plain(row) | {"used": row.kind in kinds} for row in rows.interface_rows()
            ],
            "policies": [
                _plain(row) | {"used": tuple(row.policy.split("/")) in names}
                for row in rows.policy_rows()
            ],
            "settings": [_plain(row) for row in rows.setting_rows()],
        },
        "map_b": [_plain(row) | {"used": row.name in read} for row in rows.signal_rows()],
        "map_c": [
            _plain(row) | {"used": not row.signals or bool(read & set(row.signals))}
            for row in rows.gap_rows()
        ],
    }


def named_policies(promotion: Promotion) -> set[tuple[str, str]]:
    """Kind and name of every policy that the strategy's configuration names."""
    from blis_jax.policies import registry
    from blis_jax.policies.named import admission_name

    config = promotion.arm.config
    found = {
        (kind, str(getattr(config, setting)))
        for kind, setting in registry.SETTINGS.items()
        if kind in CONTEXTS and kind not in ("scorer", "admission", *registry.OPTIONAL_KINDS)
    }
    found.add(("admission", admission_name(config)))
    for kind in registry.OPTIONAL_KINDS:
        name = str(getattr(config, registry.SETTINGS[kind]))
        if name != registry.NONE:
            found.add((kind, name))
    return found | {("scorer", name) for name, _ in config.scorers()}


def _plain(row: Any) -> dict[str, Any]:
    plain: dict[str, Any] = row.model_dump(mode="json")
    return {
        key: value
        for key, value in plain.items()
        if value is not None and (value != "" or key == "gap")
    }


def without_folders(text: str) -> str:
    """A text in which policies of files have no folders, so that it is the same on every machine."""
    return re.sub(r"[^,\s]*/([^/,]+\.py:)", r"\1", text)

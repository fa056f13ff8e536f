"""Rules of the hypotheses: every field is allowed, and every gap, stale signal and baseline scenario is tested."""

from __future__ import annotations

from collections.abc import Iterator

from blis_jax.errors import ConfigError
from blis_jax.files.strict_yaml import read_yaml
from sweeps.promote.hypotheses.document import HYPOTHESES, HypothesisDocument, parse_hypotheses
from sweeps.promote.hypotheses.inventory import inventory
from sweeps.promote.maps.stage import DICTIONARY
from sweeps.promote.promotion import Files, Finding


def coverage_findings(files: Files) -> Iterator[Finding]:
    """What is wrong with, or missing in, `hypotheses.yaml`; nothing where there is no such file."""
    path = next((one for one in sorted(files) if one.rpartition("/")[2] == HYPOTHESES), None)
    if path is None:
        return
    try:
        document = parse_hypotheses(files[path], path)
    except ConfigError as error:
        yield Finding("CRITICAL", "hypothesis-not-allowed", path, str(error))
        return
    origins = {one.origin for one in document.hypotheses}
    words = {part for origin in origins for part in origin.split("; ")}
    for wanted in (*_of_dictionary(files), *_of_inventory(document)):
        if wanted not in words:
            message = f"no hypothesis comes from {wanted!r}; add one with this origin"
            yield Finding("CRITICAL", "not-covered", path, message)


def _of_dictionary(files: Files) -> Iterator[str]:
    """Origins that the dictionary asks for: every row of Map C, every signal that is read and is less fresh there."""
    path = next((one for one in sorted(files) if one.rpartition("/")[2] == DICTIONARY), None)
    dictionary = read_yaml(files[path], path) if path else {}
    for row in dictionary.get("map_c", ()):
        yield f"Map C: {row['id']}"
    for row in dictionary.get("map_b", ()):
        if row.get("used") and row.get("gap"):
            yield f"Map B: {row['name']}"


def _of_inventory(document: HypothesisDocument) -> Iterator[str]:
    pinned = inventory()
    if document.inventory != f"{pinned.repository}@{pinned.commit}":
        yield f"inventory {pinned.repository}@{pinned.commit}"
    for scenario in pinned.scenarios:
        yield f"{pinned.repository}@{pinned.commit[:12]} {pinned.folder}/{scenario.name}.yaml"

"""BLIS's revisions, whose rules differ, and workload files of version 1, read as version 2."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from blis_jax.errors import ConfigWarning, shortened

FIRST_REVISION = "blis-2026-02"
REVISED = "blis-2026-08"
REVISIONS = (FIRST_REVISION, REVISED)

# Files without a version are of version 1. BLIS does not know the names in files of version "1.0".
FIRST_VERSION = (None, "", 1, "1", "1.0")
SECOND_VERSION = (2, "2", "2.0")
VERSION_1_CLASSES = {"realtime": "critical", "interactive": "standard"}


def upgraded(data: Mapping[Any, Any], source: str) -> dict[Any, Any]:
    """The same workload in version 2; a ConfigWarning for each class that has another name there.

    BLIS looks at a version only to tell version 1, so any other one is read as version 2.
    """
    version = data.get("version")
    if isinstance(version, bool) or not isinstance(version, str | int | float | None):
        return dict(data)
    if version not in (*FIRST_VERSION, *SECOND_VERSION):
        text = (
            f"version {shortened(version)} is not known; the file is read as version 2, as in BLIS"
        )
        warnings.warn(f"{source}: {text}", ConfigWarning, stacklevel=4)
    if version not in FIRST_VERSION:
        return {**data, "version": "2"}
    clients = data.get("clients")
    if isinstance(clients, list):
        clients = [_client(client, index, source) for index, client in enumerate(clients)]
    changes = {"version": "2"} | ({"clients": clients} if "clients" in data else {})
    return {**data, **changes}


def _client(client: Any, index: int, source: str) -> Any:
    name = client.get("slo_class") if isinstance(client, dict) else None
    if not isinstance(name, str) or name not in VERSION_1_CLASSES:
        return client
    current = VERSION_1_CLASSES[name]
    warnings.warn(
        f"{source}: clients[{index}].slo_class: {name!r} is a name of version 1 and read as "
        f"{current!r}; write {current!r} and version '2'",
        ConfigWarning,
        stacklevel=5,
    )
    return {**client, "slo_class": current}

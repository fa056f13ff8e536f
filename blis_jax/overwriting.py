"""The rule for results that exist: they are replaced only with `--overwrite`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blis_jax.errors import ConfigError

SWITCH = {"overwrite": "replace existing output files"}


def refuse_existing(given: Mapping[str, Any], outputs: Mapping[str, Path | None]) -> None:
    """Refuse outputs, by their options, that exist, unless they may be replaced."""
    for option, path in outputs.items():
        if path is None or not os.path.lexists(path):
            continue
        if path.exists() and not path.is_file() and not path.is_dir():
            raise ConfigError(f"{path} is not a file; give another {option}")
        if "overwrite" not in given:
            raise ConfigError(f"{path} exists; give --overwrite to replace it, or another {option}")

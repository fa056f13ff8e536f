"""The rule for results that exist: replaced with `--overwrite`, gone on with where a command has `--resume`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from blis_jax.errors import ConfigError

SWITCH = {"overwrite": "replace existing output files"}


Outputs = Mapping[str, "Path | Sequence[Path | None] | None"]  # by the option that names them


def refuse_existing(given: Mapping[str, Any], outputs: Outputs, can_resume: bool = False) -> None:
    """Refuse outputs that exist, unless they may be replaced or gone on with."""
    if "overwrite" in given and "resume" in given:
        raise ConfigError("--overwrite and --resume contradict each other; give one of them")
    is_allowed = "overwrite" in given or "resume" in given
    choices = "--resume to continue it, --overwrite" if can_resume else "--overwrite"
    for option, paths in outputs.items():
        for path in [paths] if isinstance(paths, Path) else paths or ():
            if path is None or not os.path.lexists(path):
                continue
            if path.exists() and not path.is_file() and not path.is_dir():
                raise ConfigError(f"{path} is not a file; give another {option}")
            if not is_allowed:
                raise ConfigError(
                    f"{path} exists; give {choices} to replace it, or another {option}"
                )

"""A surrogate as a folder: arrays as an Orbax checkpoint, the rest as JSON."""

from __future__ import annotations

import errno
import json
import logging
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp

from blis_jax.errors import ConfigError, reads_store
from blis_jax.files import manifest
from blis_jax.files.atomic_write import replacing, write_json
from blis_jax.lazy import jax

SPARE_BYTES = 2**18  # that a checkpoint takes beside its arrays
KIND, VERSION = "surrogate", 2
ABOUT, ARRAYS = "surrogate.json", "arrays"
_NEEDED = ("columns", "outputs", "units", "scales", "settings", "most_disagreement", "about")


def save(path: Path, document: Mapping[str, Any], arrays: Any) -> None:
    """Write the folder whole or not at all; `document` is what it says of itself."""
    with replacing(path) as written:
        written.mkdir()
        save_arrays(written / ARRAYS, arrays)
        write_json(written / ABOUT, {"kind": KIND, "version": VERSION, **document})
        manifest.seal(written)


@reads_store("train it again")
def load(path: Path) -> tuple[dict[str, Any], Any]:
    """Load document and arrays of the folder.

    Raises:
        ConfigError: the folder is no surrogate, or a piece of it is damaged.
    """
    is_checked = manifest.check(path, "train it again")
    document, arrays = read_about(path), load_arrays(path / ARRAYS)
    if not is_checked:
        manifest.remark(path)
    return document, arrays


def read_about(path: Path) -> dict[str, Any]:
    """Read what a surrogate's folder says of itself.

    Raises:
        ConfigError: the folder is no surrogate, is damaged, or was written by another version.
    """
    try:
        document = json.loads((path / ABOUT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        document = None
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise ConfigError(f"{path} is no surrogate; give a folder that surrogate.train wrote")
    if document.get("version") != VERSION:
        raise ConfigError(f"{path} was written by another version; train it again")
    for name in _NEEDED:
        if document.get(name) is None:
            raise ConfigError(f"{path} is damaged ({name} is missing); train it again")
    return document


def save_arrays(path: Path, tree: Any) -> None:
    """Save a tree of arrays as an Orbax checkpoint.

    Raises:
        OSError: the disk is full or broken.
    """
    _need_room(path.parent, tree)
    log = logging.getLogger("absl")  # Orbax logs a failure with its whole stack, and raises it too
    was_disabled, log.disabled = log.disabled, True
    try:
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(path.absolute(), tree)
            checkpointer.wait_until_finished()
    except Exception as error:  # whatever a full or broken disk makes Orbax raise
        reason = re.sub(r"\s*\[.*|\s*\(.*", "", str(error).splitlines()[0].rpartition(": ")[2])
        raise OSError(errno.EIO, reason or type(error).__name__, str(path)) from None
    log.disabled = was_disabled  # not after a failure, of which further threads may still log


def _need_room(folder: Path, tree: Any) -> None:
    """Fail as any writer does where the disk is full; Orbax's threads would go on and say it for pages."""
    size = sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(tree)) + SPARE_BYTES
    with tempfile.TemporaryFile(dir=folder) as probe:
        for _ in range(0, size, SPARE_BYTES):
            probe.write(bytes(SPARE_BYTES))


def load_arrays(path: Path, like: Any = None) -> Any:
    """Load the tree in a checkpoint; with the types of `like` if that is given."""
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(path.absolute(), like)

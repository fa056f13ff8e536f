"""The versions that numbers may depend on."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from pathlib import Path


def versions() -> dict[str, str]:
    """Versions of the packages, the backend, and the commit of the code if it is in a repository."""
    import jax
    import numpy as np

    found = {
        "blis_jax": _installed("blis-jax"),
        "jax": jax.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "backend": jax.default_backend(),
    }
    commit = _commit()
    return found | ({"commit": commit} if commit else {})


def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _commit() -> str:
    """The commit, with + behind it where the code has changes; empty outside of a repository."""
    root = Path(__file__).resolve().parents[2]
    commit = _git(root, "rev-parse", "HEAD")
    if not commit:
        return ""
    code = ("blis_jax", "sweeps")
    changes = _git(root, "status", "--porcelain", "--untracked-files=all", "--", *code)
    return commit + ("+" if changes else "")


def _git(folder: Path, *words: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""

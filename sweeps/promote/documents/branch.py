"""Which files of a promotion belong into the target's repository, and where."""

from __future__ import annotations

from sweeps.promote.promotion import Files

MODULE = "plugins/"  # the folder of the translation that has the shape of the target's repository


def branch_files(files: Files) -> dict[str, str]:
    """The files of the change, by their path in the target's repository."""
    return {
        path.removeprefix(MODULE): text for path, text in files.items() if path.startswith(MODULE)
    }

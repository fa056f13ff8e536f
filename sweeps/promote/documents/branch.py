"""Which files of a promotion belong into the target's repository, and where; the patch that brings them there."""

from __future__ import annotations

import re

from sweeps.promote.checks.documents import CONFIG
from sweeps.promote.documents.patch import patch_of
from sweeps.promote.promotion import Files, Promotion

GO = "go/"  # of the translation: below it, paths are those of the target's repository
REGISTRATION = (
    f"{GO}registration.patch"  # changes a file of the target, so it is in the patch alone
)
TREATMENT_CONFIG = f"configs/arms/treatment/{CONFIG}"
SAMPLES = "deploy/config"  # of the target's repository


def branch_files(promotion: Promotion, files: Files) -> dict[str, str]:
    """The new files of the change, by their path in the target's repository."""
    found = {
        path.removeprefix(GO): text
        for path, text in files.items()
        if path.startswith(GO) and path != REGISTRATION
    }
    if TREATMENT_CONFIG in files:
        found[f"{SAMPLES}/{change_name(promotion)}-epp-config.yaml"] = files[TREATMENT_CONFIG]
    return found


def change_patch(promotion: Promotion, files: Files) -> str:
    """The whole change for `git apply`: the new files, and the lines that register the plugins."""
    return patch_of(branch_files(promotion, files)) + _with_head(files.get(REGISTRATION, ""))


def change_name(promotion: Promotion) -> str:
    """A name for files and titles, in kebab case."""
    strategy = promotion.arm.strategy
    name = strategy.name if strategy is not None else promotion.given
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _with_head(text: str) -> str:
    """A patch with the line that git puts before each file."""
    return re.sub(
        r"^--- a/(?P<path>.+)$",
        r"diff --git a/\g<path> b/\g<path>\n\g<0>",
        text,
        flags=re.MULTILINE,
    )

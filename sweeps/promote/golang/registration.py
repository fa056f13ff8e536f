"""The lines that make the target know the plugins, as a patch of its runner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sweeps.promote.golang.parts import Plugin
from sweeps.promote.golang.target import TargetVersion

PATCH = "registration.patch"


def lines_of(plugins: Sequence[Plugin], target: TargetVersion) -> tuple[list[str], list[str]]:
    """Import lines and registrations, as they stand in the runner."""
    form = target.manifest["registration"]
    imports = [f'\t"{target.module}/{plugin.names.path}"' for plugin in plugins]
    calls = [
        "\t"
        + form.format(
            package=plugin.names.package, type=plugin.names.constant, factory=plugin.names.factory
        )
        for plugin in plugins
    ]
    return sorted(imports), calls


def registration(plugins: Sequence[Plugin], target: TargetVersion) -> dict[str, str]:
    """The patch, for `git apply` in the target's repository."""
    runner = target.manifest["runner"]
    imports, calls = lines_of(plugins, target)
    path = runner["path"]
    text = [f"--- a/{path}", f"+++ b/{path}"]
    added = ["", *imports]  # a group of their own: gofmt sorts inside groups only
    text += _hunk(runner["import_after"], added, 0)
    text += _hunk(runner["register_after"], calls, len(added))
    return {PATCH: "\n".join(text) + "\n"}


def _hunk(place: Mapping[str, object], added: Sequence[str], shift: int) -> list[str]:
    line = int(str(place["line"]))
    head = f"@@ -{line},2 +{line + shift},{2 + len(added)} @@"
    return [
        head,
        f" {place['before']}",
        *(f"+{one}" for one in added),
        f" {place['after']}".rstrip(" ") or " ",
    ]

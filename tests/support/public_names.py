"""The public names with their signatures, as text: those of the page "Python", and what a dataset of runs holds.

python -m tests.support.public_names --write   the text into tests/data/public_names.txt, after a change that is meant
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import blis_jax
import papers
import surrogate
import sweeps
from blis_jax.files.formats import FORMATS
from tests.support.recorded.reference_data import REPO_ROOT

PACKAGES = (blis_jax, papers, surrogate, sweeps)
PAGE = REPO_ROOT / "docs" / "reference" / "python.md"
RECORDED = REPO_ROOT / "tests" / "data" / "public_names.txt"
ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def names() -> list[str]:
    """Return the full names that the page documents, and those of the packages themselves."""
    shown = re.findall(r"^::: (\S+)", PAGE.read_text(encoding="utf-8"), re.M)
    own = {f"{package.__name__}.{name}" for package in PACKAGES for name in package.__all__}
    return sorted({*shown, *own})


def text() -> str:
    """Write each name with its signature, its members below it, then the variables of a dataset."""
    lines = [line for name in names() for line in _described(name, _found(name))]
    formats = [f"format of a {kind}: {each.number}" for kind, each in FORMATS.items()]
    return "\n".join([*lines, "", *_variables(), "", *formats, ""])


def _found(name: str) -> object:
    parts = name.split(".")
    for at in range(len(parts) - 1, 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:at]))
        except ModuleNotFoundError:
            continue
        for part in parts[at:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(name)


def _described(name: str, found: object) -> Iterator[str]:
    if not callable(found):
        yield f"{name}: {type(found).__name__}"
        return
    is_enum = isinstance(found, enum.EnumType)  # its signature is Python's, and differs by version
    yield name if is_enum else f"{name}{_signature(found)}"
    if isinstance(found, type):
        fields = (
            {field.name for field in dataclasses.fields(found)}
            if dataclasses.is_dataclass(found)
            else set()
        )
        for member in sorted(name for name in vars(found) if not name.startswith("_")):
            if member not in fields:
                value = getattr(found, member)
                yield f"  .{member}{_signature(value) if inspect.isroutine(value) else ''}"


def _signature(found: object) -> str:
    try:
        return ADDRESS.sub("", str(inspect.signature(found)))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return "(...)"


def _variables() -> Iterator[str]:
    dataset = blis_jax.sweep("vllm", workload="mixed", num_requests=20, seeds=2).to_dataset()
    for name, variable in sorted(dataset.variables.items()):
        unit = variable.attrs.get("units", "")
        yield f"dataset of a sweep: {name} [{', '.join(map(str, variable.dims))}] {unit}".rstrip()


def main() -> int:
    """Write the text into its file, or on stdout."""
    if sys.argv[1:] == ["--write"]:
        Path(RECORDED).write_text(text(), encoding="utf-8")
    else:
        print(text(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())

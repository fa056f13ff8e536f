"""Programs of a search, in Go or Python, as routers of a task's cluster; and the program line where an error arose."""

from __future__ import annotations

import ast
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from blis_jax.errors import ConfigError, choices
from blis_jax.files.input_files import read_text
from blis_jax.files.python_files import is_file, place_of
from blis_jax.policies import registry
from sweeps.evolve.go.reader import policy_of
from sweeps.evolve.go.source import START, read
from sweeps.evolve.task import SCORED, Task

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig

DECORATOR = "routing_policy"
USUAL_NAME = "route"
_GO_LINE = re.compile(r"\s*# (\d+): ")


@dataclass(frozen=True)
class EvolvedRouter:
    """A router of a task: the baseline, or a program that a search found.

    Attributes:
        file: the file name that error messages give; for a router of the package, the router's name.
        router: the value of the setting `routing_policy`.
        notes: sentences that the user should read.
        is_go: whether the router was translated from Go.
        chosen: the policy's name where the user gave one as `FILE.py:NAME`; else empty.
    """

    file: str
    router: str
    notes: tuple[str, ...] = ()
    is_go: bool = False
    chosen: str = ""

    @property
    def name(self) -> str:
        """Return the router's name: the policy that the user named, else the file."""
        return self.chosen or self.file

    def config(self, task: Task) -> ClusterConfig:
        """Return the task's cluster with this router."""
        has_scorers = self.router == SCORED or self.router not in registry.ROUTING
        scorers = {} if has_scorers else {"routing_scorers": ""}
        return task.base.replace(routing_policy=self.router, **scorers)

    def told(self, error: BaseException) -> str:
        """Return an error as one sentence; if the program's code raised it, with the file, the line and its text."""
        said = str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
        place = _place(error)
        if place is None:
            return said
        path, _, number = place.rpartition(", line ")
        lines = Path(path).read_text(encoding="utf-8").split("\n")[: int(number)]
        if self.is_go:
            matches = (_GO_LINE.match(line) for line in reversed(lines))
            match = next(filter(None, matches), None)
            number, text = (
                (match[1], match.string.strip().partition(": ")[2]) if match else ("", "")
            )
        else:
            text = lines[-1].strip()
        return f"{self.file}:{number}: {said}: {text}" if number else said


def _place(error: BaseException) -> str | None:
    """Return the place `FILE, line N` of a user's file where an error or one of its causes arose; else None."""
    cause: BaseException | None = error
    while cause is not None:
        place = place_of(cause)
        if place is not None:
            return place
        cause = cause.__cause__ or cause.__context__
    return None


def read_program(named: str, folder: Path) -> EvolvedRouter:
    """Read the program in a file, `FILE[:NAME]`; the policy is kept below `folder` in a file named after its content.

    Raises:
        ConfigError: the file does not exist, or has no routing function that can be read.
    """
    text, _, name = named.partition(":") if ".py:" in named else (named, "", "")
    path = Path(text)
    source = read_text(path, "a program in Go or Python")
    if path.suffix not in (".go", ".py"):
        raise ConfigError(f"{named}: a program ends in .go or .py")
    if path.suffix == ".py" and not _has_go(source, path):
        router = f"{_kept(source, path, folder)}:{name or _policy_in(source, path)}"
        return EvolvedRouter(path.name, router, chosen=name)
    if name:
        raise ConfigError(f"{named}: the file has Go; leave :{name} out")
    program = read(path)
    made = policy_of(program, path.stem)
    return EvolvedRouter(
        path.name, f"{_kept(made, path, folder)}:{USUAL_NAME}", tuple(program.notes), is_go=True
    )


def router_of(named: str, task: Task, folder: Path) -> EvolvedRouter:
    """Return a baseline by a router's name or a program's path; paths are relative to the task's file.

    Raises:
        ConfigError: the name is neither a router nor a program.
    """
    if named in registry.ROUTING:
        return EvolvedRouter(named, named)
    if not is_file(named) and not named.endswith((".go", ".py")):
        raise ConfigError(
            f"{task.path.name}: baseline: {named!r} is no router; {choices(named, registry.ROUTING)}; a .go file or "
            "FILE.py:NAME will do too"
        )
    beside = task.path.parent / named
    return read_program(str(beside) if Path(str(beside).partition(".py:")[0]).exists() or beside.exists()
                        else named, folder)  # fmt: skip


def _kept(policy: str, path: Path, folder: Path) -> Path:
    """Write a policy to a file whose name holds a hash of its content; return the path."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / f"{path.stem}_{hashlib.sha256(policy.encode()).hexdigest()[:12]}.py"
    if not kept.exists():
        kept.write_text(policy, encoding="utf-8")
    return kept


def _has_go(source: str, path: Path) -> bool:
    """Return whether a Python file has a string with Go between the marks."""
    return any(
        isinstance(node, ast.Constant) and isinstance(node.value, str) and START in node.value
        for node in ast.walk(_tree(source, path))
    )


def _policy_in(source: str, path: Path) -> str:
    """Return the name of a file's routing policy: `route` if there is one, else the only policy."""
    policies = [
        node.name
        for node in _tree(source, path).body
        if isinstance(node, ast.FunctionDef)
        and any(DECORATOR in ast.unparse(decorator) for decorator in node.decorator_list)
    ]
    if USUAL_NAME in policies or len(policies) == 1:
        return USUAL_NAME if USUAL_NAME in policies else policies[0]
    if not policies:
        raise ConfigError(
            f"{path.name}: no function is decorated with @{DECORATOR}(), and no text has the mark {START}; write one"
        )
    raise ConfigError(
        f"{path.name}: there are several policies, {', '.join(policies)}; give {path.name}:NAME"
    )


def _tree(source: str, path: Path) -> ast.Module:
    try:
        return ast.parse(source)
    except SyntaxError as error:
        text = (error.text or "").strip()
        raise ConfigError(f"{path.name}:{error.lineno}: not Python ({error.msg}): {text}") from None

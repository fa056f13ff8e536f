"""Programs of a search, in Go or Python, as routers of a task's cluster, and where in them an error arose."""

from __future__ import annotations

import ast
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from blis_jax.errors import ConfigError, choices
from blis_jax.files.input_files import is_file, place_of, read_text
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
    """A router of a task: the baseline, or what a search has found.

    Attributes:
        file: what its errors name; of a router of the package its name.
        router: the value of `routing_policy`.
        notes: what its user should know.
        is_go: whether it was read from Go.
        chosen: the policy of the file that was named.
    """

    file: str
    router: str
    notes: tuple[str, ...] = ()
    is_go: bool = False
    chosen: str = ""

    @property
    def name(self) -> str:
        """Return what it is called: the policy that was chosen of a file, or the file."""
        return self.chosen or self.file

    def config(self, task: Task) -> ClusterConfig:
        """Return the task's cluster with this router."""
        has_scorers = self.router == SCORED or self.router not in registry.ROUTING
        scorers = {} if has_scorers else {"routing_scorers": ""}
        return task.base.replace(routing_policy=self.router, **scorers)

    def told(self, error: BaseException) -> str:
        """Return an error in one sentence, with the program's line and what stands there, where it arose in it."""
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
    """Return the line of a user's file in which an error, or what it came from, arose."""
    cause: BaseException | None = error
    while cause is not None:
        place = place_of(cause)
        if place is not None:
            return place
        cause = cause.__cause__ or cause.__context__
    return None


def read_program(named: str, folder: Path) -> EvolvedRouter:
    """Return the program in a file, `FILE[:NAME]`; policies are written below a folder, by their content.

    Raises:
        ConfigError: there is no such file, or it has no routing function that can be read.
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
    """Return a baseline: a router by its name, or a program; paths begin at the task's file.

    Raises:
        ConfigError: it is neither.
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
    """Write a policy by its content, so that another one of the same name is another one."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / f"{path.stem}_{hashlib.sha256(policy.encode()).hexdigest()[:12]}.py"
    if not kept.exists():
        kept.write_text(policy, encoding="utf-8")
    return kept


def _has_go(source: str, path: Path) -> bool:
    """Return whether a Python file has Go in a string, between the marks."""
    return any(
        isinstance(node, ast.Constant) and isinstance(node.value, str) and START in node.value
        for node in ast.walk(_tree(source, path))
    )


def _policy_in(source: str, path: Path) -> str:
    """Return the name of the only routing policy of a file, or of `route`."""
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

"""A version of the endpoint picker (the target) as its manifest describes it; Go's tools on generated files and stubs.

Signatures, signals and built-in plugins come from the manifest; the code depends on no version. Nothing is downloaded.
"""

from __future__ import annotations

import ast
import functools
import operator
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from blis_jax.core.types import SLO_CLASSES
from blis_jax.errors import ConfigError
from sweeps.promote.golang.terms import Binary, Expression, Text, call, camel, printed
from sweeps.promote.llmd.documents import TargetTypes, target_types
from sweeps.promote.maps import policy_row
from sweeps.promote.promotion import Files, Finding
from sweeps.promote.store import target_file

PLUGINS = "pkg/epp/framework/plugins"  # below the module
FOLDER = "go"  # of the output: below it, paths are those of the target's repository

_SIGNS: dict[type, str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
_COMPUTED: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}
_ALLOWED = "names, numbers, + - * /, max and min"


@dataclass(frozen=True)
class TargetReading:
    """Hold a value that a plugin can read from the target."""

    name: str
    of: str  # metrics, an attribute, request, item or clock
    type: str  # in Go
    declared: Mapping[str, Any]

    @property
    def go(self) -> str:
        """Return the reading's name in Go."""
        return camel(self.name)

    @property
    def is_of_endpoint(self) -> bool:
        """Return whether every endpoint has its own value."""
        return self.of not in ("request", "item", "clock")


@dataclass(frozen=True)
class Signal:
    """Hold a signal of the simulator, and the formula that computes it from the target's readings."""

    path: str
    declared: Mapping[str, Any]

    @property
    def readings(self) -> tuple[str, ...]:
        """Return the names of the readings in the formula."""
        if "reading" in self.declared:
            return (str(self.declared["reading"]),)
        names = [node.id for node in ast.walk(self._tree()) if isinstance(node, ast.Name)]
        return tuple(dict.fromkeys(name for name in names if name not in ("max", "min")))

    @property
    def is_aggregated(self) -> bool:
        """Return whether the signal is one number for the request, aggregated over the endpoints."""
        return "aggregate" in self.declared

    @property
    def is_code(self) -> bool:
        """Return whether the signal is an SLO class, derived from the priority."""
        return "codes" in self.declared

    @property
    def freshness(self) -> tuple[str, ...]:
        """Return Map B's sentences: the metric behind the signal, its age in the target, its age in the simulator."""
        declared = self.declared
        return (
            f"Map B: {self.path} is {declared['metric']}.",
            f"Freshness here: {declared['refresh']}.",
            f"In the simulator: {declared['simulator']}.",
        )

    def _tree(self) -> ast.expr:
        return ast.parse(str(self.declared["formula"]), mode="eval").body

    def go(self, dtype: str, types: Mapping[str, str], named: Callable[[str], str]) -> str:
        """Return the formula in Go, in the dtype that the policy reads; `named` maps readings to Go names."""
        if self.is_code:
            return f"sloClassOf({named(self.readings[0])})"
        tree = self._tree()
        if isinstance(tree, ast.Name):
            return named(tree.id) if types[tree.id] == dtype else f"{dtype}({named(tree.id)})"
        wide = "float64" if dtype == "float64" else "int64"
        expression = _go(tree, wide, types, named)
        return printed(expression if wide == dtype else call(dtype, expression))

    def values(self, readings: Mapping[str, Any]) -> Any:
        """Return the signal computed in Python from arrays of readings, for test vectors."""
        if self.is_code:
            return _codes(self.declared["codes"], readings[self.readings[0]])
        return _computed(self._tree(), readings)


def _go(
    tree: ast.expr, dtype: str, types: Mapping[str, str], named: Callable[[str], str]
) -> Expression:
    if isinstance(tree, ast.Name):
        name = Text(named(tree.id))
        return name if types[tree.id] == dtype else call(dtype, name)
    if isinstance(tree, ast.Constant):
        return Text(repr(tree.value))
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name):
        return call(tree.func.id, *(_go(arg, dtype, types, named) for arg in tree.args))
    if isinstance(tree, ast.BinOp):
        left, right = (_go(side, dtype, types, named) for side in (tree.left, tree.right))
        return Binary(_SIGNS[type(tree.op)], left, right)
    raise ConfigError(f"formula {ast.unparse(tree)!r} of a target: use {_ALLOWED}")


def _computed(tree: ast.expr, readings: Mapping[str, Any]) -> Any:
    if isinstance(tree, ast.Name):
        return readings[tree.id]
    if isinstance(tree, ast.Constant):
        return tree.value
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name):
        choose = {"max": np.maximum, "min": np.minimum}[tree.func.id]
        return functools.reduce(choose, (_computed(arg, readings) for arg in tree.args))
    if isinstance(tree, ast.BinOp):
        left, right = _computed(tree.left, readings), _computed(tree.right, readings)
        return _COMPUTED[_SIGNS[type(tree.op)]](left, right)
    raise ConfigError(f"formula {ast.unparse(tree)!r} of a target: use {_ALLOWED}")


def _codes(cases: list[Mapping[str, Any]], priority: Any) -> Any:
    conditions = [
        (priority == case.get("equals", priority))
        & (priority >= case.get("at_least", priority))
        & (priority <= case.get("at_most", priority))
        for case in cases
    ]
    return np.select(conditions, [SLO_CLASSES.index(case["is"]) for case in cases])


@dataclass(frozen=True)
class TargetVersion:
    """Hold a version of the target with its manifest."""

    name: str
    manifest: Mapping[str, Any]

    @property
    def module(self) -> str:
        """Return the path of the target's Go module."""
        return str(self.manifest["module"])

    def built_in(self, kind: str, name: str) -> str:
        """Return the target's built-in type for a policy according to Map A; empty if a plugin must be generated."""
        if kind == "order":
            return "fcfs-ordering-policy" if name == "fcfs" else ""
        row = policy_row(kind, name)
        known = row is not None and row.status != "code" and row.plugin in self.types.plugins
        return row.plugin if row is not None and known else ""

    @property
    def types(self) -> TargetTypes:
        """Return the plugin types that the target registers."""
        return target_types(self.name)

    def is_taken(self, plugin_type: str, path: str) -> bool:
        """Return whether the target already has this plugin type or this package."""
        packages = {f"{PLUGINS}/{plugin.package}" for plugin in self.types.plugins.values()}
        return plugin_type in self.types.plugins or path in packages

    @property
    def readings(self) -> dict[str, TargetReading]:
        """Return all readings, by name."""
        return {
            name: TargetReading(name, declared["of"], declared["type"], declared)
            for name, declared in self.manifest["readings"].items()
        }

    def signal(self, path: str, revision: str = "") -> Signal | None:
        """Return the signal for a path in the simulator, in the given BLIS revision; None if the target has none."""
        known = self.manifest["signals"]
        declared = known.get(f"{path}@{revision}") or known.get(path)
        return Signal(path, declared) if declared else None

    def imported(self, name: str) -> str:
        """Return the import spec for a package of the module, by its Go name, or of Go's library, by its path."""
        below = self.manifest["imports"].get(name)
        if below is None:
            return f'"{name}"'
        path = f"{self.module}/{below}"
        return f'"{path}"' if path.rpartition("/")[2] == name else f'{name} "{path}"'


@functools.cache
def load(name: str) -> TargetVersion:
    """Return the target with this name, which is a folder of sweeps/promote/targets.

    Raises:
        ConfigError: no target has this name; the sentence lists the known ones.
    """
    return TargetVersion(name, target_file(name, "manifest.yaml"))


NO_GO = "go-toolchain"  # the rule of the finding that nothing was compiled
MISSING = "no Go toolchain is installed; install the extra `promote`, or Go itself"


# vetted before; what a debugger would need is left out of forty test programs
_FASTER = {"test": ("-vet=off", "-ldflags=-s -w")}


def find_go() -> Path | None:
    """Return the `go` that the extra `promote` installs, else the one on PATH; None if neither exists."""
    beside = Path(sys.executable).with_name("go")
    if beside.is_file():
        return beside
    path = shutil.which("go")
    return Path(path) if path else None


def find_gofmt(go: Path) -> Path | None:
    """Return the `gofmt` of this `go`'s installation, else the one on PATH; None if neither exists."""
    root = subprocess.run([go, "env", "GOROOT"], capture_output=True, text=True, check=False)
    beside = Path(root.stdout.strip()) / "bin" / "gofmt"
    if beside.is_file():
        return beside
    path = shutil.which("gofmt")
    return Path(path) if path else None


def check_go(files: Files, target: str, cache: Path | None = None) -> list[Finding]:
    """Run gofmt, `go vet` and `go test` on generated files with stubs of the target; return the findings.

    Without a Go toolchain, the only finding is IMPORTANT and says that nothing was checked.
    """
    go = find_go()
    if go is None:
        return [Finding("IMPORTANT", NO_GO, FOLDER, MISSING)]
    with module_of(files, target) as folder:
        return [
            *_formatted(go, folder, files),
            *_run(go, folder, "vet", cache),
            *_run(go, folder, "test", cache),
        ]


@contextmanager
def module_of(files: Files, target: str) -> Iterator[Path]:
    """Yield the folder of a temporary Go module: generated packages, stubs of their imports, and registrations."""
    with tempfile.TemporaryDirectory(prefix="promoted-go-") as name:
        folder = Path(name)
        for path, text in {**stubs_of(target), **_below(files)}.items():
            place = folder / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8")
        yield folder


def stubs_of(target: str) -> dict[str, str]:
    """Return the files of a minimal stub module from the manifest: plugin interfaces, and the data plugins read."""
    manifest = load(target).manifest
    files = {"go.mod": f"module {manifest['module']}\n\ngo {manifest['go']}\n"}
    for path, text in manifest["packages"].items():
        files[f"{path}/stub.go"] = text.replace("{key_type}", manifest["key_type"])
    return files


def _below(files: Files) -> dict[str, str]:
    """Return the generated files by their path in the target's repository, with the registrations as a program."""
    below = {
        path.removeprefix(f"{FOLDER}/"): text
        for path, text in files.items()
        if path.startswith(f"{FOLDER}/")
    }
    patch = below.get("registration.patch")
    if patch is not None:
        below["cmd/promoted/main.go"] = _registrations(patch)
    return below


def _registrations(patch: str) -> str:
    """Return the patch's added lines as a Go program, so that the registrations are compiled too."""
    added = [line[1:] for line in patch.splitlines() if line.startswith("+\t")]
    imports = [line for line in added if line.startswith('\t"')]
    calls = [line for line in added if line not in imports]
    module = imports[0].strip().strip('"').partition("/pkg/")[0]
    plugin_import = f'\tfwkplugin "{module}/pkg/epp/framework/interface/plugin"'
    return "\n".join(
        [
            "package main",
            "",
            "import (",
            plugin_import,
            *imports,
            ")",
            "",
            "func main() {",
            *calls,
            "}",
            "",
        ]
    )


def _formatted(go: Path, folder: Path, files: Files) -> list[Finding]:
    gofmt = find_gofmt(go)
    if gofmt is None:
        return [
            Finding(
                "IMPORTANT", "gofmt", FOLDER, "the toolchain has no gofmt; install the whole of Go"
            )
        ]
    paths = [
        path
        for path in _below(files)
        if path.endswith(".go") and not path.startswith("cmd/promoted")
    ]
    if not paths:
        return []
    done = subprocess.run(
        [gofmt, "-l", *paths], cwd=folder, capture_output=True, text=True, check=False
    )
    bad = done.stdout.split() or (["."] if done.returncode else [])
    return [
        Finding(
            "CRITICAL",
            "gofmt",
            f"{FOLDER}/{path}",
            f"{path} is not in gofmt's form; generate it again {done.stderr}".strip(),
        )
        for path in bad
    ]


def _run(go: Path, folder: Path, verb: str, cache: Path | None) -> list[Finding]:
    done = subprocess.run(
        [go, verb, *_FASTER.get(verb, ()), "./..."],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=environment(cache),
    )
    if done.returncode == 0:
        return []
    lines = (done.stdout + done.stderr).splitlines()  # what passes is not what fails
    said = " ".join(" ".join(line for line in lines if not line.startswith(("?", "ok"))).split())[
        :600
    ]
    return [
        Finding(
            "CRITICAL", f"go-{verb}", FOLDER, f"go {verb} fails on the generated plugins: {said}"
        )
    ]


def environment(cache: Path | None) -> dict[str, str]:
    """Return the environment for Go: no network, no settings of the machine, a cache of its own."""
    place = cache or Path(tempfile.gettempdir()) / f"promoted-go-cache-{os.getuid()}"
    place.mkdir(parents=True, exist_ok=True)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GO")}
    return kept | {
        "GOFLAGS": "-mod=mod", "GOPROXY": "off", "GOTOOLCHAIN": "local", "GOWORK": "off", "GO111MODULE": "on",
        "CGO_ENABLED": "0", "GOCACHE": str(place / "build"), "GOPATH": str(place / "path"),
        "GOENV": "off", "GOTELEMETRY": "off",
    }  # fmt: skip

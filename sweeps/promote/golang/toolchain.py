"""Go's own tools over generated files: format, vet, tests, on stubs of the target. Nothing is fetched."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sweeps.promote.golang import target as targets
from sweeps.promote.golang.plugins import FOLDER
from sweeps.promote.promotion import Files, Finding

NO_GO = "go-toolchain"  # the rule of the finding that nothing was compiled
MISSING = "no Go toolchain is installed; install the extra `promote`, or Go itself"


# vetted before; what a debugger would need is left out of forty test programs
_FASTER = {"test": ("-vet=off", "-ldflags=-s -w")}


def find_go() -> Path | None:
    """Return the `go` of the extra `promote`, else the one on the path; None if there is none."""
    beside = Path(sys.executable).with_name("go")
    if beside.is_file():
        return beside
    path = shutil.which("go")
    return Path(path) if path else None


def find_gofmt(go: Path) -> Path | None:
    """Return the `gofmt` that belongs to this `go`."""
    root = subprocess.run([go, "env", "GOROOT"], capture_output=True, text=True, check=False)
    beside = Path(root.stdout.strip()) / "bin" / "gofmt"
    if beside.is_file():
        return beside
    path = shutil.which("gofmt")
    return Path(path) if path else None


def check_go(files: Files, target: str, cache: Path | None = None) -> list[Finding]:
    """Return what gofmt, `go vet` and `go test` find in generated files, on stubs of the target.

    Without a toolchain one IMPORTANT finding says that nothing was checked.
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
    """Yield a module with the generated packages, stubs of those that they import, and their registrations."""
    with tempfile.TemporaryDirectory(prefix="promoted-go-") as name:
        folder = Path(name)
        for path, text in {**stubs_of(target), **_below(files)}.items():
            place = folder / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8")
        yield folder


def stubs_of(target: str) -> dict[str, str]:
    """Return a minimal module from the target's manifest: interfaces of plugins, and the data that they read."""
    manifest = targets.load(target).manifest
    found = {"go.mod": f"module {manifest['module']}\n\ngo {manifest['go']}\n"}
    for path, text in manifest["packages"].items():
        found[f"{path}/stub.go"] = text.replace("{key_type}", manifest["key_type"])
    return found


def _below(files: Files) -> dict[str, str]:
    """Return the generated files by their path in the target's repository, and the registrations as a package."""
    found = {
        path.removeprefix(f"{FOLDER}/"): text
        for path, text in files.items()
        if path.startswith(f"{FOLDER}/")
    }
    patch = found.get("registration.patch")
    if patch is not None:
        found["cmd/promoted/main.go"] = _registrations(patch)
    return found


def _registrations(patch: str) -> str:
    """Return the added lines of the patch as a program, so that they are compiled too."""
    added = [line[1:] for line in patch.splitlines() if line.startswith("+\t")]
    imports = [line for line in added if line.startswith('\t"')]
    calls = [line for line in added if line not in imports]
    module = imports[0].strip().strip('"').partition("/pkg/")[0]
    own = f'\tfwkplugin "{module}/pkg/epp/framework/interface/plugin"'
    return "\n".join(
        ["package main", "", "import (", own, *imports, ")", "", "func main() {", *calls, "}", ""]
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
    """Go without a network, without other settings of the machine, with a cache of our own."""
    place = cache or Path(tempfile.gettempdir()) / f"promoted-go-cache-{os.getuid()}"
    place.mkdir(parents=True, exist_ok=True)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GO")}
    return kept | {
        "GOFLAGS": "-mod=mod", "GOPROXY": "off", "GOTOOLCHAIN": "local", "GOWORK": "off", "GO111MODULE": "on",
        "CGO_ENABLED": "0", "GOCACHE": str(place / "build"), "GOPATH": str(place / "path"),
        "GOENV": "off", "GOTELEMETRY": "off",
    }  # fmt: skip

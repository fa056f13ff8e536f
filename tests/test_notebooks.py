"""Every notebook runs from its text, at a small size, and begins with what the reader will see."""

import ast
import os
from pathlib import Path

import pytest

from tests.support.recorded.reference_data import REPO_ROOT
from tests.support.rotation import rotating

jupytext = pytest.importorskip("jupytext", reason="the extra `notebooks` is not installed")
nbclient = pytest.importorskip("nbclient", reason="the extra `notebooks` is not installed")

NOTEBOOKS = sorted((REPO_ROOT / "notebooks").glob("*.py"))


@pytest.mark.filterwarnings("ignore")  # of the client's event loop, not of ours
@pytest.mark.parametrize(
    "path", rotating(NOTEBOOKS, always=NOTEBOOKS[:1]), ids=lambda path: path.stem
)
def test_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("BLIS_JAX_NOTEBOOKS", "small")
    monkeypatch.setenv("BLIS_JAX_EXAMPLES", str(REPO_ROOT / "examples"))
    paths = [str(REPO_ROOT), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    notebook = jupytext.read(path)
    folder = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=500, resources=folder).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    keep = os.environ.get("BLIS_JAX_KEEP_NOTEBOOKS")
    if keep:
        jupytext.write(notebook, Path(keep) / f"{path.stem}.ipynb")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_says_first_what_the_reader_will_see(path: Path):
    first = jupytext.read(path).cells[0]
    assert first.cell_type == "markdown" and "What you will see" in first.source


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_uses_the_public_door_alone(path: Path):
    """A reader can type what it types: names of the package itself, and of no module within it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    modules = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    modules |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    ours = {name for name in modules if name.split(".")[0] in ("blis_jax", "sweeps", "surrogate")}
    assert ours == {"blis_jax"}


def test_there_are_notebooks():
    assert [path.stem[0] for path in NOTEBOOKS] == list("123456")

"""`blis-jax evolve evaluator`: the server behind it, and searches with it while a local server plays the model."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from blis_jax.commands.door.dispatch import main
from tests.support.evolve.language_model import diff, language_model, loaded
from tests.support.evolve.tasks import MOST_LOADED, program_file, task_file

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples" / "evolve"
PLACE = "    place = jnp.int32(0)"
SEARCH = """
import json, sys
from pathlib import Path
from tests.support.evolve.language_model import search
found = search(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], 3)
assert "jax" not in sys.modules and "numpy" not in sys.modules
print(json.dumps([[text, one.metrics, one.artifacts] for text, one in found]))
"""


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Any]:
    """Yield a function that writes an evaluator and returns it as a module; its server is ended."""
    modules = []

    def make(**replaced: str) -> Any:
        path = tmp_path / f"evaluator{len(modules)}.py"
        task = task_file(tmp_path, **replaced)
        assert main(["evolve", "evaluator", str(task), "--output", str(path)]) == 0
        modules.append(loaded(path))
        return modules[-1]

    yield make
    for module in modules:
        module.stop()


def test_a_search_learns_from_scores_and_errors(made: Any, tmp_path: Path) -> None:
    made(stage1="{seeds: [42], pass: -5}", baseline="always-busiest")
    program = program_file(tmp_path)
    answers = [
        diff(PLACE, "    place = jnp.int32(context.nothing)"),
        diff(PLACE, "    place = jnp.argmin(context.snapshots.num_pending).astype(jnp.int32)"),
        diff("    # EVOLVE-BLOCK-END", "    # a comment\n    # EVOLVE-BLOCK-END"),
    ]
    with language_model(answers) as (api, asked):
        done = subprocess.run(
            [sys.executable, "-c", SEARCH, str(program), str(tmp_path / "evaluator0.py"), api],
            cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (_, first, _), (_, failed, why), (_, better, told), (_, again, _) = json.loads(done.stdout)
    assert failed == {"combined_score": -1000.0, "failed": 1.0}
    assert why["error"].startswith("program.py:11: ") and "context.nothing" in why["error"]
    assert why["error"] in asked[1]
    assert better["combined_score"] > first["combined_score"] + 1
    assert better["gain_percent"] == better["combined_score"] and better["half_width_percent"] > 0
    assert "mixed, critical, e2e_mean_ms" in told["by_class"]
    assert again == better  # the same function


def test_a_program_that_never_ends_is_late_and_the_next_one_is_not(
    made: Any, tmp_path: Path
) -> None:
    evaluator = made(limit_s="2")
    endless = tmp_path / "endless.py"
    endless.write_text(MOST_LOADED.format(place="0", name="route") + "\nwhile True:\n    pass\n")
    result = evaluator.evaluate(str(endless))
    assert result.metrics["combined_score"] == -1000.0
    assert "took longer than 2 s" in result.artifacts["error"]
    endless.write_text("x = (\n")
    assert "program.py:1: not Python" in evaluator.evaluate(str(endless)).artifacts["error"]


def test_processes_share_a_server_and_a_dead_one_is_replaced(made: Any, tmp_path: Path) -> None:
    evaluator = made()
    broken = tmp_path / "broken.go"
    broken.write_text("x = (\n")
    deadly = tmp_path / "deadly.py"
    deadly.write_text(
        "import os\n" + MOST_LOADED.format(place="0", name="route") + "\nos._exit(7)\n"
    )
    result = evaluator.evaluate(str(deadly))
    assert "died twice" in result.artifacts["error"] and result.metrics["failed"] == 1.0
    script = (
        "import sys; from tests.support.evolve.language_model import loaded;"
        "print(loaded(sys.argv[1]).evaluate(sys.argv[2]).artifacts['error'])"
    )
    programs = [tmp_path / "a.py", tmp_path / "b.py"]
    for path in programs:
        path.write_text("x = (\n")
    searches = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "evaluator0.py"), str(path)], cwd=ROOT,
                         stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(ROOT)}, text=True)
        for path in programs
    ]  # fmt: skip
    assert all("not Python" in search.communicate()[0] for search in searches)
    assert len({_server_of(evaluator) for _ in range(2)}) == 1


def _server_of(evaluator: Any) -> int:
    """Return the process that takes a program in."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(evaluator.CLIENT.folder / "socket"))
        connection.sendall(
            json.dumps({"text": "", "suffix": ".py", "stage": "all"}).encode() + b"\n"
        )
        return int(json.loads(connection.makefile().readline())["taken"])


def test_a_task_that_is_at_fault_stops_the_search(made: Any, tmp_path: Path) -> None:
    evaluator = made()
    task_file(tmp_path, baseline="nobody")
    with pytest.raises(evaluator.SetupError, match="baseline: 'nobody' is no router"):
        evaluator.evaluate(str(program_file(tmp_path)))


def test_what_the_command_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "evaluator.py"
    task = task_file(tmp_path, failure_score="0", stage1="{seeds: [42], pass: -5}")
    assert main(["evolve", "evaluator", str(task), "--output", str(output)]) == 2
    assert (
        "failure_score: got 0, allowed is below what stage 1 passes, -5" in capsys.readouterr().err
    )
    assert main(["evolve", "evaluator"]) == 2
    assert "no task is given" in capsys.readouterr().err
    output.write_text("")
    assert main(["evolve", "evaluator", str(task_file(tmp_path)), "--output", str(output)]) == 2
    assert "--overwrite" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("openevolve-run") is None, reason="OpenEvolve is not installed")
def test_openevolve_searches_the_example(tmp_path: Path) -> None:
    """Needs the extra `evolve`: the example's programs are of Go."""
    for name in ("routing.go", "task.yaml", "config.yaml"):
        shutil.copy(EXAMPLES / name, tmp_path / name)
    evaluator, config = tmp_path / "evaluator.py", tmp_path / "config.yaml"
    assert (
        main(["evolve", "evaluator", str(tmp_path / "task.yaml"), "--output", str(evaluator)]) == 0
    )
    weight = "\t\tweight := 0.5"
    answers = [diff(weight, "\t\tweight := ws.count"), diff(weight, "\t\tweight := 0.7")]
    with language_model(answers) as (api, asked):
        settings = yaml.safe_load(config.read_text())
        settings["llm"] |= {"api_base": api, "api_key": "none"}
        config.write_text(yaml.safe_dump(settings))
        words = ["routing.go", "evaluator.py", "--config", "config.yaml", "--iterations", "3"]
        subprocess.run(["openevolve-run", *words], cwd=tmp_path, check=True)
    loaded(evaluator).stop()
    assert len(asked) == 3
    (best,) = (tmp_path / "openevolve_output" / "best").glob("*_info.json")
    assert json.loads(best.read_text())["metrics"]["combined_score"] > -5

"""`blis-jax evolve search`: formulas as Python and as Go decide alike, and a search finds what is better."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from blis_jax.commands.door.dispatch import main
from blis_jax.policies import registry
from sweeps.evolve.formula import Formula, child_of, drawn, folded, go_of, python_of, shorter
from tests.support.evolve.cases import cases_of, decided
from tests.support.evolve.tasks import task_file


def formulas(count: int) -> list[Formula]:
    rng = np.random.default_rng(5)
    return [drawn(rng, 2, 3) for _ in range(count)]


def test_a_formula_is_read_as_it_is_written() -> None:
    for formula in formulas(200):
        assert Formula.read(str(formula)) == formula


@pytest.mark.lenient_promotion
def test_python_and_go_of_a_formula_decide_alike(tmp_path: Path) -> None:
    pytest.importorskip("tree_sitter_go", reason="the extra `evolve` is not installed")
    from sweeps.evolve.go.reader import policy_of
    from sweeps.evolve.go.source import read

    for at, formula in enumerate(formulas(12)):
        block = tmp_path / f"formula{at}.go"
        block.write_text(go_of(formula))
        texts = {"python": python_of(formula), "go": policy_of(read(block))}
        chosen = {}
        for name, text in texts.items():
            path = tmp_path / f"{name}{at}.py"
            path.write_text(text)
            chosen[name], _ = decided(
                registry.find("routing", f"{path}:route"), cases_of(at, 40, 4)
            )
        np.testing.assert_array_equal(chosen["python"], chosen["go"], str(formula))


def test_children_and_shorter_formulas_are_formulas() -> None:
    rng = np.random.default_rng(1)
    first, second = formulas(2)
    for _ in range(50):
        child = child_of(rng, first, second, 2)
        assert (
            child.at(()) is child and len({child.at(one) for one in child.places()}) == child.size
        )
        python_of(child), go_of(child)
    assert all(one.size < first.size for one in shorter(first))


@pytest.mark.lenient_promotion
def test_what_is_known_is_computed_and_nothing_else_changes(tmp_path: Path) -> None:
    number = Formula("number", number=2.0)
    prompt, load = Formula("prompt"), Formula("load")
    larger = Formula("larger", (number, Formula("number", number=3.0)))
    assert folded(Formula("plus", (Formula("most", (prompt,)), larger))) == Formula(
        "plus", (prompt, Formula("number", number=3.0))
    )
    below = Formula("below", (number, larger, Formula("least", (load,)), load))
    assert folded(below) == Formula("least", (load,)) and not folded(below).tells_apart
    for at, formula in enumerate(one for one in formulas(30) if folded(one) != one):
        chosen = []
        for name, one in (("before", formula), ("after", folded(formula))):
            path = tmp_path / f"{name}{at}.py"
            path.write_text(python_of(one))
            policy = registry.find("routing", f"{path}:route")
            chosen.append(decided(policy, cases_of(at, 40, 4))[0])
        np.testing.assert_array_equal(*chosen, str(formula))
    assert at > 2


def test_a_search_finds_a_router_that_is_better(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = task_file(tmp_path, baseline="always-busiest", seeds="[1, 2, 3, 4]")
    path = tmp_path / "found.py"
    words = ["evolve", "search", str(task), "--programs", "8", "--output", str(path)]
    assert main(words) == 0
    said = " ".join(capsys.readouterr().out.split())
    gain = float(said.split(" % over always-busiest")[0].rpartition("Sure: ")[2])
    assert gain > 1 and "kept with a probability of at least 95 %" in said
    assert path.read_text().startswith('"""A router') and "bestIdx" in (
        path.with_suffix(".go").read_text()
    )
    assert main([*words[:-1], str(tmp_path / "again.py")]) == 0
    assert (tmp_path / "again.py").read_text() == path.read_text()


def test_what_the_command_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evolve", "search"]) == 2
    assert "write the path of a TASK.yaml" in capsys.readouterr().err
    task = task_file(tmp_path)
    assert main(["evolve", "search", str(task), "--output", str(tmp_path / "a.py")]) == 2
    assert "a search needs 3 or more, got 2" in capsys.readouterr().err

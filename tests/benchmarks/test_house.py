"""The table of the house: every row is counted, on the tree and on small trees with known house."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from benchmarks import house


def tree_of(**modules: str) -> dict[str, ast.Module]:
    return {
        f"blis_jax.{name}".removesuffix(".root"): ast.parse(text) for name, text in modules.items()
    }


def test_every_row_is_counted_on_this_tree(capsys: pytest.CaptureFixture[str]) -> None:
    assert house.main([]) == 0
    lines = capsys.readouterr().out.splitlines()[2:]
    found = {
        cells[1]: cells[2] for cells in ([c.strip() for c in line.split("|")] for line in lines)
    }
    assert len(found) == len(lines) == 25
    assert "unit tests of single phases" in found and "longest function" in found
    assert all(count.replace(",", "").isdecimal() for count in found.values()), found


def test_the_chain_of_imports_is_a_shortest_one_and_types_alone_do_not_count() -> None:
    tree = tree_of(
        sweep="from blis_jax import a\nfrom typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    import blis_jax.step",
        a="def f():\n    from blis_jax.b import x\n    from blis_jax.c import y",
        b="import blis_jax.step",
        c="from blis_jax import d",
        d="from blis_jax.step import scan_step",
        step="def scan_step(): ...",
        other="import blis_jax.step",
    )
    near, between = house.layers(tree)
    assert (near.count, between.count) == (4, 6)
    assert "`sweep` → `a` → `b` → `step`" in near.where


def test_without_a_step_or_a_way_to_it_nothing_is_made_up() -> None:
    assert [row.count for row in house.layers(tree_of(sweep="import json"))] == [None, None]
    alone = tree_of(sweep="import json", step="def scan_step(): ...")
    assert [row.count for row in house.layers(alone)] == [0, 0]


def test_copies_are_counted_by_what_the_code_does() -> None:
    tree = tree_of(
        one="import jax\nclass Attempt:\n    def take(self):\n        self.repairs += 1\n"
        "def run():\n    while True:\n        Attempt()\njax.jit(run)",
        two="from blis_jax.one import Attempt\nwhile True:\n    Attempt()",
        three="while True:\n    'jax.jit(no)'",
        step="import blis_jax.one\ndef scan_step(x: Any, y: Any, z: int = 0, a: Any = 1,\n b: Any = 2) -> Any:\n"
        "    assert x is not None\n    return y == z",
    )
    assert house.repairing_loops(tree).count == 2
    assert house.jit_sites(tree).count == 1
    assert house.any_lines(tree).count == 2
    assert house.narrowings(tree).count == 2


def test_tests_of_phases_are_those_of_their_folders(tmp_path: Path) -> None:
    assert house.phase_tests(tmp_path).count == 0
    folder = tmp_path / house.PHASE_TESTS[0]
    folder.mkdir(parents=True)
    (folder / "test_gateway.py").write_text(
        "def test_a(): ...\ndef helper(): ...\ndef test_b(): ..."
    )
    assert house.phase_tests(tmp_path).count == 2


def test_folders_and_modules_that_import_each_other_form_a_circle() -> None:
    tree = tree_of(
        **{
            "engine.loop": "from blis_jax.memory.blocks import x",
            "memory.blocks": "def f():\n    import blis_jax.engine.step",
            "engine.step": "import blis_jax.results.records",
            "results.records": "",
            "results.__main__": "import blis_jax.engine.loop",
        }
    )
    folders, modules = house.import_circles(tree)
    assert (folders.count, modules.count) == (2, 0)
    assert folders.where.endswith(": blis_jax.engine, blis_jax.memory") and modules.where.endswith(
        ": none"
    )
    tree["blis_jax.engine.step"] = ast.parse("import blis_jax.engine.loop")
    assert house.import_circles(tree)[1].count == 3


def test_ladders_count_what_the_step_calls_in_its_own_module() -> None:
    tree = tree_of(
        step="def scan_step():\n    return one()\ndef one(): ...\ndef other(): ...",
        calendar="def next_due():\n    return next_due()",
    )
    assert house.step_ladders(tree).count == 5


def test_options_fields_and_features_are_counted() -> None:
    tree = tree_of(
        **{
            "commands.a": "def f(given: Mapping[str, Any], other: Mapping[str, Any]):\n    import json",
            "cluster.config": "class Base:\n    a: int\nclass ClusterConfig(Base):\n    b: int\n    c: int = 1",
            "policies.p": "gain = number(1.0)",
            "engine.e": "if ctx.mechanism.has_tier: ...\nif x > 1: ...\ny = 1 if z is None else 2",
        }
    )
    assert house.untyped_options(tree).count == 1
    assert house.function_imports(tree).count == 1
    assert house.config_fields(tree).count == 4
    assert house.feature_tests(tree).count == 2

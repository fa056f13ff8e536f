"""The tutorial's commands, all of them in order, at a small size."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from blis_jax.__main__ import main
from tests.support.recorded.reference_data import REPO_ROOT
from tests.sweeps.tiny import TINY

TUTORIAL = REPO_ROOT / "docs" / "tutorials" / "strategy.md"
# what makes it small; every text on the left must be there
SMALL = {
    "--workload mixed": "--workload small.yaml",
    "workload: mixed": "workload: {small}",
    "seeds: [42, 43, 44, 45, 46]": "seeds: [42, 43, 44]",
    "--seeds 42,43,44,45,46": "--seeds 42,43,44",
    "--seeds 100,101,102,103,104,105,106,107,108,109": "--seeds 100,101,102",
    "num_instances: 8": "num_instances: 2",
    "calls: 40, initial: 12, batch: 4": "calls: 3, initial: 2, batch: 1",
    "--seeds 20": "--seeds 3",
    "--rate 500,1000,2000,3000 --arrival-cv 1,2,3.5 --instances 4,8": "--rate 500 --arrival-cv 1,2 --instances 2",
    "--shape mixed": "--shape mixed --seeds 1,2 --requests 30",
    "idea1_tiered_cascade": "idea1_tiered_cascade --num-requests 40 --judges proxy,bounds",
}


def blocks(kind: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", TUTORIAL.read_text(), re.MULTILINE | re.DOTALL)
    return [text for name, text in fenced if name == kind]


def small(text: str, workload: str) -> str:
    for usual, other in SMALL.items():
        text = text.replace(usual, other.format(small=workload))
    return text


def test_every_replacement_is_in_the_tutorial() -> None:
    text = TUTORIAL.read_text()
    assert [usual for usual in SMALL if usual not in text] == []


def test_there_are_fewer_than_ten_commands() -> None:
    assert 0 < sum(block.count("blis-jax ") for block in blocks("")) < 10


def test_the_commands_before_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the search; what comes after takes five times as long."""
    monkeypatch.chdir(tmp_path)
    lines = commands()
    first = next(at for at, line in enumerate(lines) if "blis-jax ledger" in line)
    assert first > 3
    run(lines[:first])
    assert Path("out", "shop.json").exists()


@pytest.mark.slow
def test_all_commands_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(commands())
    assert re.search(r"^\| *1 *\|.*tuned", Path("tracks/shop/ledger.md").read_text(), re.MULTILINE)
    for made in ("shop.json", "shop-compare.json", "shop-ablate.json", "shop-map.zarr"):
        assert Path("out", made).exists()


def commands() -> list[str]:
    return "".join(blocks("")).replace("\\\n", " ").splitlines()


def run(lines: list[str]) -> None:
    """Every command must end well, in the current folder."""
    workload = yaml.safe_load(TINY)["workload"]
    Path("small.yaml").write_text(yaml.safe_dump(workload))
    (strategy,) = blocks("yaml")
    for line in lines:
        words = shlex.split(small(line, ""))
        assert words[0] == "blis-jax"
        assert main(words[1:]) == 0, line
        if words[1] == "init":
            text = small(strategy, json.dumps(workload))
            Path("tracks/shop/iter1-strategy.yaml").write_text(text)

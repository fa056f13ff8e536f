"""A routing function of Go decides as in Go, in all contexts; what is not read is refused with its line."""

from __future__ import annotations

import json
import lzma
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blis_jax import ClusterConfig, ConfigError, simulate
from blis_jax.commands.run.requests import draw_requests
from blis_jax.policies import registry
from blis_jax.policies.reading import computed_by, signals_of
from blis_jax.workload.spec import load_builtin, override
from sweeps.evolve.go.reader import policy_of
from sweeps.evolve.go.source import read
from sweeps.evolve.programs import EvolvedRouter
from tests.support.evolve.cases import by_go, cases_of, decided
from tests.support.evolve.found_programs import FOUND
from tests.support.evolve.later_programs import LATER
from tests.support.evolve.programs import PROGRAMS, whole
from tests.support.evolve.searched_programs import SEARCHED

RECORDED = Path(__file__).with_name(
    "decisions.json.xz"
)  # of Go 1.27, by program and number of instances
SIZES, NUM_CASES = (1, 2, 4, 7), 60
FIRST_LINE = next(
    number
    for number, text in enumerate(whole("ties").split("\n"), 1)
    if "EVOLVE-BLOCK-START" in text
)
GO = shutil.which("go")

pytest.importorskip("tree_sitter_go", reason="the extra `evolve` is not installed")
pytestmark = pytest.mark.lenient_promotion


def read_text(folder: Path, text: str, name: str = "routing.go") -> str:
    path = folder / name
    path.write_text(text)
    return policy_of(read(path))


def policy(folder: Path, name: str):
    path = folder / f"{name}.py"
    path.write_text(read_text(folder, whole(name)))
    return registry.find("routing", f"{path}:route")


@pytest.mark.parametrize("name", PROGRAMS)
def test_decisions_are_those_of_go(name: str, tmp_path: Path) -> None:
    recorded = json.loads(lzma.decompress(RECORDED.read_bytes()))[name]
    made = policy(tmp_path, name)
    for size in SIZES if name not in {**LATER, **SEARCHED, **FOUND} else SIZES[::2]:
        chosen, used = decided(made, cases_of(3, NUM_CASES, size))
        assert [*map(list, zip(chosen.tolist(), used.tolist(), strict=True))] == recorded[str(size)]


@pytest.mark.skipif(GO is None, reason="Go is not installed; the extra promote has it")
def test_a_thousand_contexts_are_decided_as_in_go(tmp_path: Path) -> None:
    texts = {name: whole(name) for name in PROGRAMS}
    policies = {name: policy(tmp_path, name) for name in PROGRAMS}
    for size in (3, 6):
        cases = cases_of(11, 1000, size)
        folder = tmp_path / str(size)
        folder.mkdir()
        expected = by_go(str(GO), texts, cases, folder)
        assert any((used > 0).any() for _, used in expected.values()) == (size > 1)
        for name, made in policies.items():
            for found, wanted in zip(decided(made, cases), expected[name], strict=True):
                np.testing.assert_array_equal(found, wanted, err_msg=name)


def test_loops_without_an_order_are_vectors(tmp_path: Path) -> None:
    loops = {
        name: read_text(tmp_path, whole(name)).count(" for pass_") for name in ("helpers", "ties")
    }
    assert loops == {"helpers": 0, "ties": 0}
    assert " for i in range(go.size):" in read_text(tmp_path, whole("ties"))


@pytest.mark.parametrize("name", ["filter", "objects", "ties"])
def test_a_run_with_it_stays_one_function(name: str, tmp_path: Path) -> None:
    computed = computed_by(policy(tmp_path, name), 4, 2)
    assert computed is not None and "gather" in computed
    assert "scatter" not in computed  # XLA makes no function of a loop that has one


def test_a_block_and_a_python_file_are_read_as_the_whole(tmp_path: Path) -> None:
    def code(text: str) -> list[str]:
        body = re.sub(r"_\d+", "", text[text.index("def route") :]).split("\n")
        return [line for line in body if "#" not in line and '"""' not in line and line.strip()]

    of_file = code(read_text(tmp_path, whole("ties")))
    block = PROGRAMS["ties"][1]
    assert code(read_text(tmp_path, block.lstrip("\n"), "block.go")) == of_file
    in_python = f"GO = '''{whole('ties')}'''\nother = 1\n"
    of_python = read_text(tmp_path, in_python, "program.py")
    assert code(of_python) == of_file
    line = FIRST_LINE + 2
    assert f"# {line}: bestScore := -math.MaxFloat64" in of_python


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ("bestIdx := ws.count % 2", r"a struct field.*is not read: ws\.count"),
        ("ws.weights[0] = 1\nbestIdx := 0", r"kept between requests.*: ws\.weights\[0\]"),
        ("aw := ws.weights\naw[0] = 1\nbestIdx := 0", r"is not read: it would be kept between requests"),
        ("go func() {}()\nbestIdx := 0", r"this statement is not read: go func"),
        ("bestIdx := time.Now().Second()", r"package time is not read"),
        ("bestIdx := rand.Intn(2)", r"package rand is not read"),
        ("bestIdx := len(req.OutputTokens)", r"the answer's length is not known"),
        ("bestIdx := 0\nfor { bestIdx++ }", r"this loop does not end"),
        ("t := 0.0\nfor _, v := range ws.scorers[0](req, snapshots) { t += v }\nbestIdx := int(t)", r"random order"),
        ("if len(snapshots) > 2 { return NewRoutingDecision(snapshots[0].ID, \"\") }\nbestIdx := 0", r"before the obs"),
        ("snapshots[0].QueueDepth = 3\nbestIdx := 0", r"is not read: it would be kept"),
        ("type n struct{ a int }\nx := n{1}\nx = n{b: 2}\nbestIdx := x.a", r"n has no such field"),
        ("sort.Slice(snapshots, func(i, j int) bool { return i < j })\nbestIdx := 0", r"this is not sorted here"),
        ("sort.Sort(sort.IntSlice([]int{1}))\nbestIdx := 0", r"this call is not read: sort\.IntSlice"),
        ("goto end\nend:\nbestIdx := 0", r"this statement is not read: goto end"),
        ("bestIdx := 1.5 + 0", r"an int|is not read|another type"),
        ("if req.TenantID == \"a\" { }\nbestIdx := 0", r"tenants have numbers here"),
        ("bestIdx := ((", r"this is not Go"),
        ("for _, obs := range ws.observers { obs(req, snapshots[0].ID) }\nbestIdx := 1", r"observers are told of an"),
    ],
)  # fmt: skip
def test_what_is_not_read_is_refused_with_its_line(block: str, said: str, tmp_path: Path) -> None:
    whole_text = whole("ties").replace(PROGRAMS["ties"][1], f"\n{block}\n")
    said_ = refusal(whole_text, tmp_path)
    assert re.match(rf"^routing\.go:\d+: .*{said}", said_), said_
    line = int(said_.split(":")[1])
    assert line in range(FIRST_LINE, FIRST_LINE + len(block.split("\n")) + 8)


def refusal(text: str, folder: Path) -> str:
    """Return why a program is not read, or cannot be traced."""
    (folder / "routing.go").write_text(text)
    try:
        made = policy_of(read(folder / "routing.go"))
    except ConfigError as error:
        return str(error)
    path = folder / "mine.py"
    path.write_text(made)
    with pytest.raises(ConfigError) as refused:
        decided(registry.find("routing", f"{path}:route"), cases_of(3, 2, 3))
    return EvolvedRouter("routing.go", f"{path}:route", is_go=True).told(refused.value)


@pytest.mark.parametrize("name", ["objects", "strings"])
def test_what_a_stepwise_program_reads_is_told(name: str, tmp_path: Path) -> None:
    made = policy(tmp_path, name)
    alone, many = (signals_of(made, size, num_scorers=2) for size in (1, 5))
    assert {"objects": "has_session", "strings": "request.slo_class"}[name] in many
    assert alone <= many


def test_more_than_a_dozen_are_not_sorted(tmp_path: Path) -> None:
    made = policy(tmp_path, "sort_slice")
    decided(made, cases_of(3, 2, 12))
    with pytest.raises(
        ConfigError, match=r"up to 13 elements is sorted.*order of its own above 12"
    ):
        decided(made, cases_of(3, 2, 13))
    decided(policy(tmp_path, "sort_idx"), cases_of(3, 2, 13))  # stable


@pytest.mark.parametrize(
    ("block", "leaves", "told"),
    [
        ("bestIdx := 0\nfor snapshots[bestIdx].QueueDepth > 9 { bestIdx = (bestIdx + 1) % len(snapshots) }",
         lambda cases: (cases.queue_depth > 9).all(axis=1), "followed for 64 passes at most"),
        ("q := []int{0, 1}\nr := q[:1]\nif snapshots[0].QueueDepth > 9 { r = append(r, 0) }\nr = append(r, 0)\n"
         "bestIdx := q[0]", lambda cases: cases.queue_depth[:, 0] > 9, ""),
        ("s := map[string]int{}\nfor _, x := range snapshots { s[x.ID] = x.QueueDepth }\nt := 0\n"
         "for _, v := range s { t = v }\nbestIdx := t % len(snapshots)", lambda cases: np.zeros(len(cases.input_len)),
         "keys Go takes in a random order"),
    ],
    ids=["unended", "beyond_a_part", "map"],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*chooses instance -1")
def test_where_go_may_do_something_else_nothing_is_decided(
    block: str, leaves: Any, told: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(read_text(tmp_path, whole("ties").replace(PROGRAMS["ties"][1], f"\n{block}\n")))
    assert told in path.read_text()
    cases = cases_of(3, 200, 3)
    cases = replace(cases, is_active=np.ones_like(cases.is_active))
    chosen, _ = decided(registry.find("routing", f"{path}:route"), cases)
    np.testing.assert_array_equal(chosen < 0, leaves(cases))


def test_comments_have_the_lines_of_go(tmp_path: Path) -> None:
    made = read_text(tmp_path, whole("sort_slice"))
    number = whole("sort_slice").split("\n").index("\tbestIdx := cands[0].idx") + 1
    assert f"# {number}: bestIdx := cands[0].idx" in made


def test_files_without_a_routing_function_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no method Route"):
        read_text(tmp_path, "package sim\nfunc other() int { return 1 }\n")
    with pytest.raises(ConfigError, match="no text with the mark"):
        read_text(tmp_path, "x = 1\n", "program.py")
    with pytest.raises(ConfigError, match="cannot be read"):
        read(tmp_path / "none.go")


def test_a_text_that_is_no_class_is_told(tmp_path: Path) -> None:
    block = 'bestIdx := 0\nif req.SLOClass == "realtime" { bestIdx = len(snapshots) - 1 }\n'
    path = tmp_path / "block.go"
    path.write_text(block)
    program = read(path)
    assert "'realtime' is no class of BLIS" in policy_of(program)
    assert len(program.notes) == 1


IN_TURN = """package sim

type InTurn struct {
	scorers          []scorerFunc
	count, step      int
	share            float64
	isOdd            bool
	rng              *rand.Rand
}

func NewInTurn() *InTurn { return &InTurn{step: 1, share: 0.5} }

func (it *InTurn) advance() {
	it.count += it.step
	it.isOdd = !it.isOdd
}

func (it *InTurn) Route(req *Request, state *RouterState) RoutingDecision {
	if len(state.Snapshots) == 0 {
		return RoutingDecision{Reason: "none"}
	}
	snapshots := state.Snapshots
	target := snapshots[it.count%len(snapshots)]
	if it.share == 0.5 && it.isOdd == (it.count%2 == 1) {
		it.advance()
	}
	return NewRoutingDecision(target.ID, "in turn")
}
"""


def test_numbers_of_the_struct_last_from_request_to_request(tmp_path: Path) -> None:
    table = draw_requests(override(load_builtin("mixed"), num_requests=40), 3, 16)[0]
    cluster = ClusterConfig(num_instances=3, revision="blis-2026-08", routing_scorers="")
    expected = simulate(cluster.replace(routing_policy="round-robin"), table).requests.instance
    draws = "it.count + 0*it.rng.Intn(2)"
    for name, text in {
        "turn": IN_TURN,
        "drawn": IN_TURN.replace("[it.count", f"[({draws})"),
    }.items():
        path = tmp_path / f"{name}.py"
        path.write_text(read_text(tmp_path, text))
        found = simulate(cluster.replace(routing_policy=f"{path}:route"), table).requests.instance
        np.testing.assert_array_equal(found, expected)
    late = IN_TURN.replace("&InTurn{step: 1, ", "&InTurn{step: steps(), ")
    assert re.search(r":11: what this begins with is not known: step", refusal(late, tmp_path))


def test_weighted_routing_in_go_is_weighted_routing(tmp_path: Path) -> None:
    table = draw_requests(override(load_builtin("multiprefix"), num_requests=60), 3, 16)[0]
    scorers = "prefix-affinity:1,load-balance:2"
    cluster = ClusterConfig(num_instances=3, revision="blis-2026-08", routing_scorers=scorers)
    policy(tmp_path, "weighted")
    read_ = cluster.replace(routing_policy=f"{tmp_path / 'weighted.py'}:route")
    found = simulate(read_, table).requests.instance
    expected = simulate(cluster.replace(routing_policy="weighted"), table).requests.instance
    np.testing.assert_array_equal(found, expected)
    assert len(set(expected)) == 3

"""Mistakes in a user's policies that tracing does not show, and how those that it shows are said."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from blis_jax import ConfigError
from blis_jax.cluster.config import ClusterConfig
from blis_jax.commands import cli
from blis_jax.core.kinds import KINDS
from blis_jax.engine.mechanism import mechanism
from blis_jax.errors import ConfigWarning
from blis_jax.policies import registry
from blis_jax.policies.reading import reading, signals_of
from blis_jax.runs.demand import sharing_instances
from sweeps.strategies.arms import arm_of

HEAD = "import jax.numpy as jnp\nfrom blis_jax.policies import *\n"


def written(folder: Path, decorator: str, *lines: str) -> str:
    body = "\n".join(f"    {line}" for line in lines)
    path = folder / "mine.py"
    path.write_text(
        f'{HEAD}@{decorator}()\ndef mine(params, state, context):\n    """D."""\n{body}\n'
    )
    return f"{path}:mine"


@pytest.mark.parametrize(
    ("line", "text", "meant"),
    [
        ('return context.request.slo_class != "sheddable", state', "sheddable", "SHEDDABLE"),
        ('is_urgent = "critical" == context.request.slo_class', "critical", "CRITICAL"),
        ('is_urgent = context.request.slo_class == "critcal"', "critcal", "CRITICAL"),
        ('is_late = context.request.slo_class in ("Batch", "x")', "Batch", "BATCH"),
    ],
)
def test_a_class_compared_with_a_text_is_refused(
    tmp_path: Path, line: str, text: str, meant: str
) -> None:
    name = written(tmp_path, "admission_policy", line, "return True, state")
    with pytest.raises(ConfigError, match=rf"\(mine.py, line 6\) .* the text '{text}'.*== {meant}"):
        registry.find("admission", name)


def test_a_class_with_a_name_of_its_own(tmp_path: Path) -> None:
    lines = ("kind = context.request.slo_class", 'return kind == "batch", state')
    with pytest.raises(ConfigError, match=r"line 7.*== BATCH"):
        registry.find("admission", written(tmp_path, "admission_policy", *lines))


def test_texts_and_numbers_that_are_meant(tmp_path: Path) -> None:
    lines = ('name = "critical"', 'assert name == "critical"')
    known = "return (context.request.slo_class == CRITICAL) | ~is_sheddable(context.request.slo_class), state"
    registry.find("admission", written(tmp_path, "admission_policy", *lines, known))


@pytest.mark.parametrize(
    "score", ["500.0 * seen.is_active", "-1.0 * seen.batch_size", "seen.queue_depth - 30.0"]
)
def test_scores_outside_0_to_1_are_told(tmp_path: Path, score: str) -> None:
    lines = ("seen = context.snapshots", f"return {score}, state")
    with pytest.warns(
        ConfigWarning, match=r"scorer mine \(mine.py, line 3\) gives .* on an example"
    ):
        registry.find("scorer", written(tmp_path, "scorer", *lines))


def test_scores_from_0_to_1_are_not(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        registry.find(
            "scorer",
            written(tmp_path, "scorer", "return 1 / (1 + context.snapshots.batch_size), state"),
        )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("@routing_policy()\ndef mine(params, context):\n    return 0, None\n",
         r"routing policy mine \(mine.py, line 3\): the function takes \(params, state, context\); too many"),
        ("@routing_policy(start=lambda: 0)\ndef mine(params, state, context):\n    return 0, state\n",
         r"start= takes \(params, shape\); too many"),
        ("import random\n@routing_policy()\ndef mine(params, state, context):\n    return random.randrange(2), state\n",
         r"mine.py, line 6\) calls random.randrange, which happens once, before the run; declare is_random=True"),
        ("@routing_policy()\ndef mine(params, state, context):\n    global N\n    N = 1\n    return N, state\n",
         r"line 5\) changes N outside of it, which happens once, before the run; keep what it remembers in `state`"),
        ("@routing_policy\ndef mine(params, state, context):\n    return 0, state\n",
         r"routing_policy decorates mine without parentheses; write @routing_policy\(\)"),
    ],
    ids=["two arguments", "a start without arguments", "Python's random", "a global", "a bare decorator"],
)  # fmt: skip
def test_what_no_run_would_show_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(HEAD + text)
    with pytest.raises(ConfigError, match=says):
        registry.find("routing", f"{path}:mine")


def test_variables_of_its_own_may_change(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        HEAD + "@routing_policy()\ndef mine(params, state, context):\n    place = jnp.int32(0)\n\n"
        "    def next_one():\n        nonlocal place\n        place = place + 1\n\n"
        "    next_one()\n    return place, state\n"
    )  # fmt: skip
    assert registry.find("routing", f"{path}:mine").name


@pytest.mark.parametrize(
    "score",
    ["context.snapshots.queue_depth * jnp.nan", "(lambda load: load / load.sum())(context.snapshots.batch_size)"],
    ids=["always", "0 ÷ 0 on an idle cluster"],
)  # fmt: skip
def test_a_score_that_is_no_number_is_refused(tmp_path: Path, score: str) -> None:
    score = f"return {score}, state"
    with pytest.raises(ConfigError, match=r"scorer mine \(mine.py, line 3\) gives NaN"):
        registry.find("scorer", written(tmp_path, "scorer", score))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("return jnp.argmin(context.queue_depth), state",
         "GatewayContext has nothing called 'queue_depth'; write snapshots.queue_depth"),
        ("return jnp.argmin(context.snapshots.queue_depht), state",
         "Snapshots has nothing called 'queue_depht'; did you mean 'queue_depth'?"),
        ("return (0 if context.snapshots.queue_depth[0] > 3 else 1), state",
         "if, and, or, not and while need a value before the run; use jnp.where"),
        ("return [0, 1][context.snapshots.queue_depth[0]], state", "an index or a count is needed before the run"),
        ("return min(float(context.snapshots.queue_depth[0]), 1.0), state", "a Python number is needed before the run"),
        ("import numpy as np; return int(np.argmin(np.array(context.snapshots.queue_depth))), state",
         "numpy (np) needs values before the run; use jax.numpy (jnp)"),
        ("return jnp.zeros((2, 3)) @ jnp.zeros(5), state", "TypeError: "),
        ("return context.snapshots.queue_depth.argmn(), state",
         "an array has nothing called 'argmn'; did you mean 'argmin'?"),
        ("return jnp.int32(params.weight), state", "the policy has no numbers, and reads 'weight'; declare it with"),
    ],
    ids=["a signal elsewhere", "a misspelt signal", "a Python if", "an index", "a number", "numpy", "another error",
         "a method of an array", "a number that is not declared"],
)  # fmt: skip
def test_what_tracing_shows_is_one_sentence(
    tmp_path: Path, line: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = written(tmp_path, "routing_policy", line)

    def command(_: object) -> int:
        mechanism(arm_of(f"vllm:routing_policy={name}").config)
        return 0

    assert cli.run_command("test", command, []) == 2
    said = capsys.readouterr().err
    assert f"mine.py, line 6: {says}" in said and said.count("\n") == 1


WRONG = {  # by kind: what a policy must not return, and what is said
    "admission": ("0.5, state", r"decided float\[\]; decide one bool"),
    "routing": ("1.5, state", r"decided float\[\]; decide one int32"),
    "scorer": ("0.5, state", r"decided float\[\]; decide float64\[instance\], here float64\[\d\]"),
    "picker": ("context.scores, state", r"decided float64\[\d\]; decide one int32"),
    "priority": ("0.5, state", r"decided float\[\]; decide float64\[slot\]"),
    "scheduler": ("0.5, state", r"decided float\[\]; decide \(float64\[slot\], int32\[slot\]\)"),
    "cluster": ("3, state", r"decided int\[\]; decide a ClusterChange"),
    "hand_over": ("True, state", r"decided bool\[\]; decide a HandOver"),
    "source": ("None, state", r"decided None; decide a Happening"),
    "victim": ("True, state", r"decided bool\[\]; decide float64\[slot\]"),
    "offload": ("'yes', state", r"decided 'yes'; decide float64\[block\]"),
    "draft": ("0.5, state", r"decided float\[\]; decide one int32"),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("answer", ["wrong", "nothing"])
def test_a_wrong_return_of_every_kind_is_one_sentence_before_a_run(
    tmp_path: Path, kind: str, answer: str
) -> None:
    needs = "next_time=lambda params, state: 0" if KINDS[kind].needs else ""
    wrong, says = WRONG[kind]
    line, says = (
        (f"return {wrong}", says) if answer == "wrong" else ("pass", "returned None; return a pair")
    )
    path = tmp_path / "mine.py"
    path.write_text(
        f"{HEAD}@{KINDS[kind].decorator}({needs})\ndef mine(params, state, context):\n    {line}\n"
    )
    policy = registry.find(kind, f"{path}:mine")
    with pytest.raises(ConfigError, match=rf"mine \(mine.py, line 3\) {says}"):
        signals_of(policy)


@pytest.mark.parametrize("answer", ["context.snapshots.queue_depth", "jnp.float64(12)"])
def test_an_answer_of_another_form_is_refused_and_not_told_twice(
    tmp_path: Path, answer: str, recwarn: pytest.WarningsRecorder
) -> None:
    policy = registry.find(
        "routing", written(tmp_path, "routing_policy", f"return {answer}, state")
    )
    with pytest.raises(ConfigError, match="decide one int32"):
        signals_of(policy)
    assert not recwarn.list


@pytest.mark.parametrize("chosen", ["99", "-1"])
def test_an_instance_that_there_is_not_is_told(tmp_path: Path, chosen: str) -> None:
    with pytest.warns(ConfigWarning, match=rf"chooses instance {chosen} of 4 on an example"):
        registry.find("routing", written(tmp_path, "routing_policy", f"return {chosen}, state"))


def test_a_scorer_of_one_size_of_cluster_is_asked_with_that(tmp_path: Path) -> None:
    name = written(tmp_path, "scorer", "return jnp.linspace(0.0, 1.0, 6), state")
    policy = registry.find("scorer", name)
    assert reading(policy, 6).signals == frozenset()
    with pytest.raises(ConfigError, match=r"here float64\[5\]"):
        reading(policy, 5)


def test_next_time_takes_two(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    head = "@cluster_policy(next_time=lambda params, state, context: 0)\n"
    path.write_text(f"{HEAD}{head}def mine(params, state, context):\n    return 0, state\n")
    with pytest.raises(ConfigError, match=r"next_time= takes \(params, state\)"):
        registry.find("cluster", f"{path}:mine")


def test_a_router_of_a_file_has_room_for_uneven_shares(tmp_path: Path) -> None:
    own = written(tmp_path, "routing_policy", "return 0, state")
    known, mine = (ClusterConfig(num_instances=8, routing_policy=name) for name in ("least-loaded", own))  # fmt: skip
    assert sharing_instances(known) == 8 and sharing_instances(mine) == 1

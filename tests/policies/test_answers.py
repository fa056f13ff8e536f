"""An answer of another form than the kind's is refused in one sentence with the policy's line, and no traceback."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blis_jax import ConfigError
from blis_jax.policies import ClusterChange, NoParams, NoState
from blis_jax.policies.contract import DECORATORS, Policy
from blis_jax.policies.scenes import scene_of
from blis_jax.run import main


@pytest.fixture(autouse=True)
def with_x64():
    with jax.enable_x64(True):
        yield


def asked(kind: str, answer, state=None):
    """What a policy that answers so decides, and its next state."""

    def mine(params, state, context):
        return answer(context) if callable(answer) else answer

    parts = {"next_time": lambda params, state: jnp.inf} if kind == "cluster" else {}
    policy: Policy = dataclasses.replace(DECORATORS[kind](**parts)(mine), signals=frozenset())
    scene = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), scene_of(kind), is_leaf=is_shape
    )
    return policy.ask(NoParams(), NoState() if state is None else state, scene)


def is_shape(leaf):
    return isinstance(leaf, jax.ShapeDtypeStruct)


UP = np.ones(4, bool)
BAD = {
    "nothing": ("routing", None, "returned None; return a pair, (decision, state)"),
    "no state": ("admission", np.bool_(True), "returned bool[]; return a pair"),
    "no decision": ("routing", (None, NoState()), "decided None; decide one int32"),
    "a float": ("routing", (np.float64(1), NoState()), "decided float64[]; decide one int32"),
    "a number": ("admission", (1, NoState()), "decided int[]; decide one bool"),
    "a text": ("admission", ("yes", NoState()), "decided 'yes'; decide one bool"),
    "one score": ("scorer", (0.5, NoState()), "decided float[]; decide float64[instance], here float64[4]"),
    "five scores": ("scorer", (np.zeros(5), NoState()), "decided float64[5]; decide float64[instance], here"),
    "flags": ("priority", (np.ones(8, bool), NoState()), "decided bool[8]; decide float64[slot], here float64[8]"),
    "no rank": ("scheduler", (np.zeros(8), NoState()), "decided float64[8]; decide (float64[slot], int32[slot])"),
    "a real rank": ("scheduler", ((np.zeros(8), np.zeros(8)), NoState()), "decide int32[slot], here int32[8]"),
    "no change": ("cluster", (UP, NoState()), "decided bool[4]; decide a ClusterChange"),
    "few are up": ("cluster", (ClusterChange(UP[:2], UP, 0.0), NoState()), "decided is_up as bool[2]; decide is_up as"),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "answer", "sentence"), BAD.values(), ids=BAD)
def test_a_decision_of_another_form_is_refused(kind, answer, sentence):
    with pytest.raises(ConfigError) as refused:
        asked(kind, answer)
    assert sentence in str(refused.value)
    assert "mine (test_answers.py, line " in str(refused.value)


STATE = {"count": np.zeros(4, np.int32)}
BAD_STATES = {
    "none": (None, "returned the state None; keep the form of a dict"),
    "shape": ({"count": np.zeros(3, np.int32)}, "a state with int32[3] where it had int32[4]; keep"),
    "dtype": ({"count": np.zeros(4)}, "a state with float64[4] where it had int32[4]; keep"),
}  # fmt: skip


@pytest.mark.parametrize(("after", "sentence"), BAD_STATES.values(), ids=BAD_STATES)
def test_a_state_of_another_form_is_refused(after, sentence):
    with pytest.raises(ConfigError) as refused:
        asked("routing", (0, after), STATE)
    assert sentence in str(refused.value)


GOOD = {
    "routing": (2, np.int32),
    "admission": (True, np.bool_),
    "picker": (np.int64(1), np.int64),
    "scorer": (np.zeros(4, np.int32), np.int32),
}


@pytest.mark.parametrize("kind", GOOD)
def test_python_numbers_and_near_dtypes_will_do(kind):
    answer, dtype = GOOD[kind]
    decision, state = asked(kind, (answer, STATE), STATE)
    assert decision.dtype == dtype and state is STATE


def test_a_command_ends_with_the_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "mine.py"
    file.write_text(
        "from blis_jax.policies import scorer\n\n\n"
        "@scorer()\ndef best(params, state, context):\n    return 1.0, state\n"
    )
    words = [
        "--model",
        "meta-llama/llama-3.1-8b-instruct",
        "--num-requests",
        "4",
        "--num-instances",
        "2",
    ]
    policy = ["--routing-policy", "weighted", "--routing-scorers", f"{file}:best:1"]
    assert main([*words, *policy]) == 2
    shown = capsys.readouterr().err.strip().splitlines()[-1]
    assert shown.endswith(
        "the scorer best (mine.py, line 4) decided float[]; decide float64[instance], here float64[2]"
    )

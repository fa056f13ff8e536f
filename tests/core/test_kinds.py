"""A kind of policy is one row: with an eleventh row in the table, everything but its call site is there."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from blis_jax import policies
from blis_jax.cluster.config import ClusterConfig
from blis_jax.core import kinds
from blis_jax.core.kinds import KINDS, ROUTER
from blis_jax.policies import contexts, registry

PROBE = '''
import importlib.util, json, sys, types
from pathlib import Path

source = Path(importlib.util.find_spec("blis_jax").origin).parent / "core" / "kinds.py"
row = """    Kind(
        "greeting", "greeting_policy", "GatewayContext", "bool", "none", "who is greeted", "a bool",
    ),
)  # fmt: skip
"""
text = source.read_text().replace(")  # fmt: skip\\n", row)
module = types.ModuleType("blis_jax.core.kinds")
sys.modules["blis_jax.core.kinds"] = module
exec(compile(text, str(source), "exec"), vars(module))

from blis_jax import ClusterConfig, ConfigError, Policies
from blis_jax.cluster.named_policies import draws
from blis_jax.commands.options.cluster_flags import CLUSTER_FLAGS
from blis_jax.core.types import EngineShape
from blis_jax.engine.mechanism import mechanism, params
from blis_jax.engine.phases.policy_calls import first_states
from blis_jax.policies.contract import DECORATORS

mine = Path(sys.argv[1])
mine.write_text("""
from typing import Any
import jax.numpy as jnp
from blis_jax.policies import number, pytree
from blis_jax.policies.contract import DECORATORS

@pytree
class Numbers:
    warmth: Any = number(0.5, "", "how warm", low=0, high=1)

@DECORATORS["greeting"](Numbers, start=lambda params, shape: jnp.int32(7), is_random=True)
def hello(params, state, context):
    return True, state + 1
""")
name = f"{mine}:hello"
config = ClusterConfig(greeting_policy=name, policy_numbers={"greeting.warmth": 0.25})
made, numbers = mechanism(config), params(config)
shape = EngineShape(num_instances=1, num_slots=1, num_requests=1, num_nodes=1, path_depth=1)
handed = mechanism(ClusterConfig(), Policies(greeting=made.greeting))

def refusal(make):
    try:
        make()
    except ConfigError as error:
        return str(error)

(flag,) = [flag for flag in CLUSTER_FLAGS if flag.name == "greeting-policy"]
print(json.dumps({
    "function": made.greeting.name,
    "handed": handed.greeting == made.greeting,
    "none": mechanism(ClusterConfig()).greeting is None,
    "number": float(numbers.policy.greeting.warmth),
    "state": int(first_states(shape, made, numbers)[0][made.of_gateway.index(made.greeting)]),
    "draws": [draws(config), draws(ClusterConfig())],
    "flag": [flag.default, flag.help],
    "value": config.value("greeting.warmth"),
    "other kind": refusal(lambda: Policies(greeting=made.routing)),
    "unknown name": refusal(lambda: ClusterConfig(greeting_policy="wave")),
}))
'''


def test_a_row_is_a_kind(tmp_path: Path) -> None:
    words = [sys.executable, "-c", PROBE, str(tmp_path / "mine.py")]
    shown = subprocess.run(words, capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout) == {
        "function": "hello",
        "handed": True,
        "none": True,
        "number": 0.25,
        "state": 7,
        "draws": [True, False],
        "flag": ["none", "who is greeted"],
        "value": 0.25,
        "other kind": "policies.greeting is a policy of kind routing; give a function decorated with "
        "@greeting_policy() of blis_jax.policies",
        "unknown name": "greeting_policy 'wave' is not known; use one of none, or path/to/file.py:Name",
    }


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_row_names_what_there_is(kind: kinds.Kind) -> None:
    assert getattr(policies, kind.decorator).kind is kind
    assert hasattr(contexts, kind.context) and kind.name in registry.NAMES
    assert hasattr(policies.Policies(), kind.field)
    default = getattr(ClusterConfig(), kind.setting)
    assert default == ("" if kind.is_list else kind.default)
    assert kind.is_list or kind.is_optional or default in registry.NAMES[kind.name]


def test_sentences_call_kinds_by_their_names() -> None:
    words = {name: (KINDS[name].words, KINDS[name].plural) for name in ("hand_over", "scorer")}
    assert words["hand_over"] == ("a hand-over policy", "hand-over policies")
    assert words["scorer"] == ("a scorer", "scorers")
    assert [kind.decode_setting for kind in ROUTER] == [
        "decode_routing_policy", "decode_routing_scorers", "decode_routing_picker"
    ]  # fmt: skip

"""Names of policies: the only place where a name, or a path to a user's file, becomes a policy.

A new policy of the package needs its own file and one line here. Nothing here imports JAX.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import warnings
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from blis_jax.core.kinds import KINDS, NONE, SAME
from blis_jax.core.types import SLO_CLASSES
from blis_jax.errors import ConfigError, ConfigWarning, closest, shortened
from blis_jax.files.python_files import is_file, value_in_file
from blis_jax.lazy import jax
from blis_jax.policies.contract import Policy
from blis_jax.policies.numbers import FIXED, Number, numbers_of
from blis_jax.policies.scenes import INSTANCES, scene_of
from blis_jax.policies.their_names import POLICIES, here_instead

if TYPE_CHECKING:
    from jaxtyping import Shaped

    from blis_jax.policies.contract import Policy


# --- mistakes in policies of users' files that no tracing shows ----------------------------------


CLASS = "slo_class"
MOST = 40  # requests, blocks or µs in the examples
EXAMPLES = (0, 17)
# signals that are 0 before the first request
LOADS = {"effective_load", "queue_depth", "batch_size", "num_pending", "kv_utilization"}


def check_own(policy: Policy) -> None:
    """Check a user's policy before a run.

    Raises:
        ConfigError: the policy compares a request's class, a number, with a text, which is always false; it takes other
            arguments, draws with Python's or numpy's `random`, changes a global, or scores NaN.
    """
    function = policy.decide
    code = getattr(function, "__code__", None)
    if code is None:
        return
    source = Path(code.co_filename)
    _check_arguments(policy, f"{source.name}, line {code.co_firstlineno}")
    if source.is_file():
        made = _function_at(source, code.co_firstlineno)
        if made is not None:
            _check_classes(policy, made, source)
            _check_memory(policy, made, source)
    if policy.kind == "scorer":
        _check_scores(policy, f"{source.name}, line {code.co_firstlineno}")
    if policy.kind in ("routing", "picker"):
        _check_choice(policy, f"{source.name}, line {code.co_firstlineno}")


_ARGUMENTS = {  # how many, of each function of a policy
    "decide": 3,
    "start": 2,
    "observe": 3,
    "next_time": 2,
    "pool": 2,
}
_FORMS = {
    "decide": "the function takes (params, state, context)",
    "start": "start= takes (params, shape)",
    "observe": "observe= takes (params, state, completion)",
    "next_time": "next_time= takes (params, state)",
    "pool": "pool= takes (params, context)",
}


def _check_arguments(policy: Policy, place: str) -> None:
    for name, count in _ARGUMENTS.items():
        function = getattr(policy, name)
        if function is None:
            continue
        try:
            inspect.signature(function).bind(*range(count))
        except TypeError as error:
            raise ConfigError(f"{policy.words} ({place}): {_FORMS[name]}; {error}") from None


def _function_at(source: Path, first_line: int) -> ast.FunctionDef | None:
    tree = ast.parse(source.read_text(encoding="utf-8"))
    for made in ast.walk(tree):
        if isinstance(made, ast.FunctionDef):
            lines = [made.lineno, *(node.lineno for node in made.decorator_list)]
            if first_line in lines:
                return made
    return None


def _check_classes(policy: Policy, made: ast.FunctionDef, source: Path) -> None:
    for line, text in _compared_texts(made):
        raise ConfigError(
            f"{policy.words} ({source.name}, line {line}) compares the class of a request with the text {text!r}, "
            f"but classes are numbers; write == {_class_like(text)} or is_sheddable(…), both from blis_jax.policies"
        )


def _class_like(text: str) -> str:
    """Return the constant's name, in policies, of the SLO class whose name is closest to `text`."""
    return (get_close_matches(text.lower(), SLO_CLASSES[1:], 1, 0) or [SLO_CLASSES[1]])[0].upper()


_DRAWS = re.compile(r"(random|np\.random|numpy\.random)\.\w+")


def _check_memory(policy: Policy, made: ast.FunctionDef, source: Path) -> None:
    """Refuse effects that happen once, in tracing, instead of at each decision: Python's draws, global values."""
    names = _own_names(made)
    for node in ast.walk(made):
        said = None
        if isinstance(node, ast.Global | ast.Nonlocal) and not names.issuperset(node.names):
            said = f"changes {', '.join(node.names)} outside of it"
            instead = "keep what it remembers in `state`, which start= begins"
        elif isinstance(node, ast.Call) and _DRAWS.fullmatch(ast.unparse(node.func)):
            said = f"calls {ast.unparse(node.func)}"
            instead = "declare is_random=True and draw with jax.random from context.key"
        if said is not None:
            raise ConfigError(
                f"{policy.words} ({source.name}, line {node.lineno}) {said}, which happens once, before the run; "  # type: ignore[attr-defined]
                f"{instead}"
            )


def _own_names(made: ast.FunctionDef) -> set[str]:
    """Return the names that a function, or a function inside it, assigns as local variables."""
    stored: set[str] = set()
    inner = list(ast.iter_child_nodes(made))
    borrowed: set[str] = set()
    while inner:
        node = inner.pop()
        if isinstance(node, ast.FunctionDef):
            stored |= _own_names(node)
            continue
        if isinstance(node, ast.Nonlocal | ast.Global):
            borrowed |= {*node.names}
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            stored.add(node.id)
        inner += ast.iter_child_nodes(node)
    return stored - borrowed


def _compared_texts(made: ast.FunctionDef) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of every comparison of a class with a text or with a list of texts."""
    named = {
        target.id
        for node in ast.walk(made)
        if isinstance(node, ast.Assign) and CLASS in ast.unparse(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(made):
        if not isinstance(node, ast.Compare):
            continue
        sides = [node.left, *node.comparators]
        parts = [part for side in sides for part in (side, *getattr(side, "elts", ()))]
        texts = [part.value for part in parts if isinstance(part, ast.Constant)]
        words = [ast.unparse(side) for side in sides]
        if any(CLASS in text or text in named for text in words):
            yield from ((node.lineno, text) for text in texts if isinstance(text, str))


def _check_scores(policy: Policy, place: str) -> None:
    """Warn if a score of an example is outside 0 to 1; refuse NaN."""
    for at, values in enumerate(_decided(policy)):
        if np.isnan(values).any():
            raise ConfigError(
                f"{policy.words} ({place}) gives NaN on an example, such as instances without requests, and "
                "nothing can be chosen by it; look for 0 ÷ 0"
            )
        wrong = values[(values < 0) | (values > 1)]
        if wrong.size and at < len(EXAMPLES):
            said = f"{policy.words} ({place}) gives {wrong[0]:g} on an example"
            text = f"{said}; scores outside 0 to 1 are cut off, so divide by the largest"
            warnings.warn(ConfigWarning(text), stacklevel=2)
            return


def _check_choice(policy: Policy, place: str) -> None:
    """Warn if the policy chooses an instance that does not exist in an example."""
    for decision in _decided(policy):
        if decision.shape or decision.dtype.kind not in "iu":
            return  # refused where it is traced
        if not 0 <= decision < INSTANCES:
            text = (
                f"{policy.words} ({place}) chooses instance {decision} of {INSTANCES} on an example; it must "
                "return the index of one, from 0 on, and a run without such an instance ends there"
            )
            warnings.warn(ConfigWarning(text), stacklevel=2)
            return


def _decided(policy: Policy) -> list[Shaped[np.ndarray, "..."]]:
    """Return the policy's decisions on the examples, then on the same examples without load; none if it fails, because
    tracing it later reports the error.
    """
    paths, tree = jax.tree_util.tree_flatten_with_path(scene_of(policy.kind))
    leaves = [leaf for _, leaf in paths]
    loads = {at for at, (path, _) in enumerate(paths) if getattr(path[-1], "name", "") in LOADS}
    shape: Any = None  # what a start needs of it, an example has not
    numbers = policy.values()

    @jax.jit  # one program; by itself each of its operations would be compiled
    def decide(arrays: dict[int, Any]) -> Any:
        context = jax.tree.unflatten(tree, [arrays.get(at, leaf) for at, leaf in enumerate(leaves)])
        return policy.decide(numbers, policy.start(numbers, shape), context)[0]

    examples = []
    for first in EXAMPLES:
        example = {at: _example(leaf, first) for at, leaf in enumerate(leaves)}
        examples.append({at: part for at, part in example.items() if isinstance(part, np.ndarray)})
    examples += [
        {at: array * 0 if at in loads else array for at, array in example.items()}
        for example in examples
    ]
    try:
        with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
            return [np.asarray(decide(example)) for example in examples]
    except Exception:
        return []


def _example(leaf: object, first: int) -> object:
    """Return an array of a leaf's shape and dtype, whose numbers begin with `first`; floats are below 1."""
    if not isinstance(leaf, jax.ShapeDtypeStruct) or jax.dtypes.issubdtype(
        leaf.dtype, jax.dtypes.prng_key
    ):  # a scorer that draws fails here, and is not looked at
        return leaf
    if leaf.dtype == np.bool_:
        return np.ones(leaf.shape, np.bool_)
    numbers = (first + 11 * np.arange(np.prod(leaf.shape, dtype=int))) % MOST
    if np.issubdtype(leaf.dtype, np.floating):
        numbers = numbers / MOST
    return numbers.reshape(leaf.shape).astype(leaf.dtype)


# --- names of policies ---------------------------------------------------------------------------


def _of(module: str, names: str) -> dict[str, str]:
    """Return the places of policies in a module by name; a name is that of the function, with dashes."""
    return {name: f"{module}.{name.replace('-', '_')}" for name in names.split()}


ADMISSION = {
    **_of("admission", "always-admit reject-all token-bucket slo-gated slo-queue-gated"),
    **_of("admission", "predictive-slo"),
    **_of("classes", "tier-shed gaie-legacy stale-gated"),
}
ROUTING = {
    **_of("routing.by_load", "round-robin least-loaded"),
    **_of("routing.by_score", "weighted"),
    **_of("routing.by_load", "prefix-affinity always-busiest"),
    **_of("routing.pickers", "least-loaded-drawn"),
    **_of("routing.by_score", "adaptive-weighted kv-adaptive epoch-adaptive"),
    **_of("routing.by_load", "power-of-two length-buckets"),
}
SCORERS = {
    **_of("scorers", "prefix-affinity queue-depth kv-utilization load-balance kv-pressure"),
    **_of("scorers", "cost-benefit slo-headroom slo-priority precise-prefix-cache no-hit-lru"),
    **_of("scorers", "waiting-requests running-requests active-requests load-aware vllm-dp"),
    **_of("scorers", "capability-load lora-affinity approx-prefix-cache"),
    "length-buckets": "routing.by_load.in_bucket",
}
PICKERS = _of("routing.pickers", "first-best random-best weighted-random drawn-best")
PRIORITY = {
    **_of("queue_order", "constant slo-based inverted-slo slo-tiered load-adaptive slo-class"),
    **_of("classes", "gateway-class"),
}
SCHEDULERS = _of("queue_order", "fcfs priority-fcfs sjf reverse-priority")
CLUSTER = {
    **_of("movement.outages", "outages outage-at"),
    **_of("movement.autoscaler", "autoscaler"),
    **_of("movement.saturation_autoscaler", "saturation-autoscaler"),
}
HAND_OVER = {"pools": "movement.pools.pools"}
NAMES: dict[str, dict[str, str]] = {
    "admission": ADMISSION,
    "routing": ROUTING,
    "scorer": SCORERS,
    "picker": PICKERS,
    "priority": PRIORITY,
    "scheduler": SCHEDULERS,
    "cluster": CLUSTER,
    "hand_over": HAND_OVER,
    "source": {},  # users have them in files
    "victim": {},
    "offload": {},
    "draft": {},
}


def find(kind: str, name: str, setting: str = "") -> Policy:
    """Return the policy of a kind with this name, or the policy at `path/to/file.py:Name`.

    `setting` is the setting that holds the name, if it is not the kind's usual one.

    Raises:
        ConfigError: there is no such name, file or policy; the message lists the known names.
    """
    if is_file(name):
        return _from_file(kind, name, setting or KINDS[kind].setting)
    names = NAMES.get(kind, {})
    if name not in names:
        what = setting or KINDS[kind].setting
        if _OTHER_FILE.search(name):
            raise ConfigError(
                f"{what} {shortened(name)}: a policy is a function in a file of Python; give path/to/file.py:Name "
                "(blis-jax evolve read makes one of Go)"
            )
        allowed = ", ".join((*names, *_no_policy(kind, setting)))
        hint = here_instead(kind, name) or closest(name, (*names, *POLICIES.get(kind, ())))
        raise ConfigError(
            f"{what} {shortened(name)} is not known; use one of {allowed}, or path/to/file.py:Name{hint}"
        )
    return _built_in(names[name])


_OTHER_FILE = re.compile(r"\.(py|pyc|ipynb|go|so|wasm|yaml|yml|json)(:|$)")


def _no_policy(kind: str, setting: str) -> tuple[str, ...]:
    """Return the words that a setting accepts in place of a policy: for none, or for the cluster's own."""
    if setting and not KINDS[kind].is_list:
        return (SAME,)
    return (NONE,) if KINDS[kind].is_optional else ()


def _built_in(where: str) -> Policy:
    module, _, name = where.rpartition(".")
    policy: Policy = getattr(import_module(f"blis_jax.policies.{module}"), name)
    return policy


def _from_file(kind: str, name: str, setting: str) -> Policy:
    wanted = f"{setting} {name}"
    policy = value_in_file(name, wanted, Policy, f"@{KINDS[kind].decorator}()")
    if policy.kind != kind:
        raise ConfigError(f"{wanted} is of kind {policy.kind}; give one of kind {kind}")
    if policy not in _CHECKED:
        check_own(policy)
        _CHECKED.add(policy)
    return policy


_CHECKED: set[Policy] = set()


class Setting(NamedTuple):
    """A setting that supplies a number of some of the package's policies."""

    number: Number
    kind: str
    policies: tuple[str, ...]  # names


def setting_of(policy_name: str, field: str, number: Number) -> str | None:
    """Return the setting of a policy's number; None if the reference fixes the number."""
    if number.setting == FIXED:
        return None
    return number.setting or f"{policy_name.replace('-', '_')}_{field}"


@functools.cache
def settings() -> Mapping[str, Setting]:
    """Return the settings of all policies' numbers in the package by name, in the order of the registry."""
    by_setting: dict[str, Setting] = {}
    for kind, name, field, node in _numbers():
        setting = setting_of(name, field, node)
        if setting is not None:
            known = by_setting.get(setting)
            policies = tuple(dict.fromkeys((*(known.policies if known else ()), name)))
            by_setting[setting] = Setting(known.number if known else node, kind, policies)
    return by_setting


def _numbers() -> Iterator[tuple[str, str, str, Number]]:
    """Yield kind, policy, field and declaration of every number of the package's policies."""
    for kind, names in NAMES.items():
        for name in names:
            for field, node in numbers_of(find(kind, name).params).items():
                yield kind, name, field, node

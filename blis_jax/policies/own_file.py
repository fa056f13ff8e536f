"""Mistakes in policies of users' files that no tracing shows.

Classes compared with texts, wrong numbers of arguments, what changes outside the policy, scores outside 0 to 1.
"""

from __future__ import annotations

import ast
import inspect
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.core.types import SLO_CLASSES
from blis_jax.errors import ConfigError, ConfigWarning
from blis_jax.lazy import jax
from blis_jax.policies.scenes import INSTANCES, scene_of

if TYPE_CHECKING:
    from jaxtyping import Float

    from blis_jax.policies.contract import Policy

CLASS = "slo_class"
MOST = 40  # requests, blocks or µs in the examples
EXAMPLES = (0, 17)


def check(policy: Policy) -> None:
    """Look at a policy before it is run.

    Raises:
        ConfigError: it compares a request's class, which is a number, with a text; that is false without a word. It
            takes other arguments, draws with Python's or numpy's `random`, changes a global, or scores NaN.
    """
    function: Any = policy.decide
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
            lines = [made.lineno, *(one.lineno for one in made.decorator_list)]
            if first_line in lines:
                return made
    return None


def _check_classes(policy: Policy, made: ast.FunctionDef, source: Path) -> None:
    for line, text in _compared_texts(made):
        raise ConfigError(
            f"{policy.words} ({source.name}, line {line}) compares the class of a request with the text {text!r}, "
            f"but classes are numbers; write == {text.upper()} or is_sheddable(…), both from blis_jax.policies"
        )


_DRAWS = re.compile(r"(random|np\.random|numpy\.random)\.\w+")


def _check_memory(policy: Policy, made: ast.FunctionDef, source: Path) -> None:
    """Refuse what happens once, when the program is made, and never in a run: draws of Python, global values."""
    for one in ast.walk(made):
        said = None
        if isinstance(one, ast.Global | ast.Nonlocal):
            said = f"changes {', '.join(one.names)} outside of it"
            instead = "keep what it remembers in `state`, which start= begins"
        elif isinstance(one, ast.Call) and _DRAWS.fullmatch(ast.unparse(one.func)):
            said = f"calls {ast.unparse(one.func)}"
            instead = "declare is_random=True and draw with jax.random from context.key"
        if said is not None:
            raise ConfigError(
                f"{policy.words} ({source.name}, line {one.lineno}) {said}, which happens once, before the run; "  # type: ignore[attr-defined]
                f"{instead}"
            )


def _compared_texts(made: ast.FunctionDef) -> Iterator[tuple[int, str]]:
    """Yield line and text of every comparison of a class with a class's name."""
    named = {
        target.id
        for one in ast.walk(made)
        if isinstance(one, ast.Assign) and CLASS in ast.unparse(one.value)
        for target in one.targets
        if isinstance(target, ast.Name)
    }
    for one in ast.walk(made):
        if not isinstance(one, ast.Compare):
            continue
        sides = [one.left, *one.comparators]
        texts = [side.value for side in sides if isinstance(side, ast.Constant)]
        words = [ast.unparse(side) for side in sides]
        if any(CLASS in text or text in named for text in words):
            yield from ((one.lineno, text) for text in texts if text in SLO_CLASSES[1:])


def _check_scores(policy: Policy, place: str) -> None:
    """Warn where a score of an example is outside 0 to 1."""
    for first in EXAMPLES:
        values = _decided(policy, first)
        if np.isnan(values).any():
            raise ConfigError(
                f"{policy.words} ({place}) gives NaN on an example; no instance can be chosen by it, so look for 0 ÷ 0"
            )
        wrong = values[(values < 0) | (values > 1)]
        if wrong.size:
            said = f"{policy.words} ({place}) gives {wrong[0]:g} on an example"
            text = f"{said}; scores outside 0 to 1 are cut off, so divide by the largest"
            warnings.warn(ConfigWarning(text), stacklevel=2)
            return


def _check_choice(policy: Policy, place: str) -> None:
    """Warn where an example gets an instance that there is not."""
    for first in EXAMPLES:
        for chosen in _decided(policy, first).reshape(-1):
            if chosen % 1 == 0 and not 0 <= chosen < INSTANCES:  # others are refused where traced
                text = (
                    f"{policy.words} ({place}) chooses instance {chosen:g} of {INSTANCES} on an example; it must "
                    "return the index of one, from 0 on, and a run without such an instance ends there"
                )
                warnings.warn(ConfigWarning(text), stacklevel=2)
                return


def _decided(policy: Policy, first: int) -> Float[np.ndarray, "..."]:
    """Return the decision on an example; nothing where it fails, which is said where it is traced."""
    context = jax.tree.map(lambda leaf: _example(leaf, first), scene_of(policy.kind))
    shape: Any = None  # what a start needs of it, an example has not
    numbers = policy.values()
    try:
        with jax.enable_x64(True):
            decision, _ = policy.decide(numbers, policy.start(numbers, shape), context)
        return np.asarray(decision, np.float64)
    except Exception:
        return np.zeros(0)


def _example(leaf: Any, first: int) -> Any:
    """Return an array of a leaf's shape and dtype, whose numbers begin with `first`; shares are at most 1."""
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

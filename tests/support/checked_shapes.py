"""Annotations of the package are checked in tests: jaxtyping's shapes and dtypes, and beartype's types.

Functions, methods and dataclasses of the modules in `CHECKED` are wrapped as they are imported. Annotations are read at
the first call, when all modules are there, so names that are imported for types alone count too. Functions inside
functions are left out: they would be wrapped again in every call.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, MappingProxyType, ModuleType
from typing import Any

import jax
import numpy as np
from beartype import BeartypeConf, beartype
from jaxtyping import Real, jaxtyped

CHECKED = (
    "core", "tables", "prefix_index", "memory", "engine", "policies", "latency", "statistics", "workload",
    "calibrate", "records", "metrics", "results", "cluster", "commands", "files", "reports", "runs", "traces",
)  # fmt: skip
# names and settings on the host, and the fields of rows, which are read thousands of times while a program is traced
LEFT_OUT = (
    "core.kinds", "core.columns", "policies.numbers", "policies.registry",
    "policies.reading", "policies.scenes",
    # checked by pydantic
    "workload.expansion", "workload.inference_perf", "workload.length_laws", "workload.revised_spec", "workload.spec",
    "workload.spec_parts",
    # also given specs that were read without a checker, where pydantic is not installed
    "workload.distribution", "workload.drawing.plan_params",
    # they say themselves what is wrong with what a file or a user gives them
    "cluster.instance_groups", "cluster.step_times", "runs.many_runs",
    # functions are named by the file of their code
    "runs.kept_programs", "runs.programs",
    # asked for every number that is drawn
    "workload.go_math", "workload.go_random",
)  # fmt: skip
OF_MANY = (
    "Exits",
    "FleetView",
    "Members",
    "RequestTable",
    "RequestView",
    "Snapshots",
    "StepBatch",
)  # as contexts: tests and calls of several runs make many at once, with an axis in front
# one definition for numpy on the host and for JAX in a compiled call; times are floats on the continuous clock
OF_BOTH = ("blis_jax.records", "blis_jax.metrics", "blis_jax.results")
# where figures are whole numbers, too
OF_FIGURES = ("blis_jax.statistics", "blis_jax.calibrate", *OF_BOTH)
STAND_INS = (
    "SimpleNamespace", "Fields", "Unread", "ShapeDtypeStruct",
    # one run of a compiled call, several stacked ones, and the numbers that derivatives are taken of
    "LaneRun", "_Stacked", "Numbers",
    # a run whose record a test makes
    "StandInRun",
)  # fmt: skip
FUNCTION, CLASS = "__checked_function__", "__checked_class__"
TYPES = beartype(conf=BeartypeConf(is_pep484_tower=True))  # a whole number may stand for a float
ON_HOST = np.ndarray | np.generic  # a reduction of numpy's returns a number without axes
ANY_ARRAY = jax.Array | np.ndarray | np.generic  # numbers are made on the host
UNRESOLVED: set[tuple[str, str]] = set()
"""Module and text of annotations that could not be read."""
WRAPPED: list[Callable[..., Any]] = []
_TYPE_IMPORTS: dict[str, ast.Module] = {}
_NAMES: dict[str, dict[str, Any]] = {}


def _is_for_types(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


class _Wrapped(ast.NodeTransformer):
    """The module with a decorator on every function that is not inside another one, and on every class."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        # innermost: other decorators may leave no annotations
        node.decorator_list.append(ast.copy_location(ast.Name(FUNCTION, ast.Load()), node))
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        self.generic_visit(node)
        # outermost: it must have become a dataclass
        node.decorator_list.insert(0, ast.copy_location(ast.Name(CLASS, ast.Load()), node))
        return node


def _names(module: str) -> dict[str, Any]:
    """What annotations of the module may name; kept once all of it is there."""
    if module in _NAMES:
        return _NAMES[module]
    names = dict(vars(sys.modules[module]))
    is_all = not getattr(sys.modules[module].__spec__, "_initializing", False)
    for statement in _TYPE_IMPORTS[module].body:
        try:
            exec(compile(ast.Module([statement], []), module, "exec"), names)
            if module.startswith(OF_FIGURES) and "Float" in names:
                names["Float"] = Real
            if module.startswith(OF_BOTH) and "Int" in names:
                names["Int"] = Real
        except NameError:  # a union of classes that are not there yet
            is_all = False
        except ImportError:  # the other module is not whole yet, or has the name for types alone
            other = statement.module if isinstance(statement, ast.ImportFrom) else None
            known = _names(other) if other in _TYPE_IMPORTS and other in sys.modules else {}
            wanted = {one.name for one in getattr(statement, "names", ())}
            names |= {name: known[name] for name in wanted & known.keys()}
            is_all = is_all and wanted <= known.keys()
    on_host = ANY_ARRAY if module.startswith(OF_BOTH) else ON_HOST
    names |= {"Array": ANY_ARRAY, "Values": ANY_ARRAY, "OnHost": on_host, "Self": Any}
    if names.get("Absent") is Any:
        names["Absent"] = None
    if is_all:
        _NAMES[module] = names
    return names


def is_whole(module: str) -> bool:
    """Whether all that annotations of the module name can be found by now: it has been imported."""
    return module in _NAMES or (bool(_names(module)) and module in _NAMES)


def resolved(
    function: Callable[..., Any], inherited: Mapping[str, str] = MappingProxyType({})
) -> Callable[..., Any]:
    """The function, whose annotations are no texts any more; `inherited` are the modules of others' annotations."""
    for name, annotation in function.__annotations__.items():
        if isinstance(annotation, str):
            names = _names(inherited.get(name, function.__module__))
            try:
                host = "np.ndarray" if function.__module__.startswith(OF_BOTH) else "[np.ndarray,"
                text = annotation.replace("jax.Array", "Array")
                text = text.replace(host, host.replace("np.ndarray", "OnHost"))
                found = eval(text, names)
            except Exception:
                UNRESOLVED.add((function.__module__, annotation))
                found = Any
            function.__annotations__[name] = found
    return function


def _has_stand_in(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether something with few of the real one's fields is handed over, or with fields that are made when read."""
    names = {type(one).__name__ for one in (*args, *kwargs.values())}
    return not names.isdisjoint(STAND_INS)


def checked_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Check arguments and result of every call.

    Not of generators: their arguments would be looked at once they are advanced, with the axes of who does that.
    """
    if inspect.isgeneratorfunction(function):
        return function
    checks: list[Callable[..., Any]] = []
    WRAPPED.append(function)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if _has_stand_in(args, kwargs) or not is_whole(function.__module__):
            return function(*args, **kwargs)
        if not checks:
            checks.append(TYPES(resolved(function)))
        with jaxtyped("context"):
            return checks[0](*args, **kwargs)

    return wrapper


def _homes(cls: type) -> dict[str, str]:
    """The module of the class that declares each field."""
    classes = [one for one in reversed(cls.__mro__) if one.__module__ in _TYPE_IMPORTS]
    return {
        name: one.__module__ for one in classes for name in vars(one).get("__annotations__", ())
    }


def checked_class(cls: type) -> type:
    """Check the fields of a dataclass where it is made by name; JAX makes it of anything, a lane's axis or None."""
    if getattr(cls, "_is_protocol", False):
        return typing.runtime_checkable(cls)
    if not dataclasses.is_dataclass(cls) or "__init__" not in vars(cls):
        return cls
    if cls.__module__ == "blis_jax.policies.contexts" or cls.__name__ in OF_MANY:
        return cls
    plain: Any = vars(cls)["__init__"]
    plain.__module__ = cls.__module__
    checks: list[Callable[..., Any]] = []

    @functools.wraps(plain)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        is_of_jax = sys._getframe(1).f_globals.get("__name__", "").partition(".")[0] == "jax"
        if is_of_jax or _has_stand_in(args, kwargs) or not is_whole(cls.__module__):
            plain(self, *args, **kwargs)
            return
        if not checks:
            checks.append(TYPES(resolved(plain, _homes(cls))))
        with jaxtyped("context"):
            checks[0](self, *args, **kwargs)

    cls.__init__ = __init__  # type: ignore[misc]
    return cls


class _Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        tree = ast.parse(self.get_data(path), path)
        for_types = [each for node in tree.body if _is_for_types(node) for each in node.body]  # type: ignore[attr-defined]
        _TYPE_IMPORTS[fullname] = ast.Module(for_types, [])
        code: CodeType = compile(ast.fix_missing_locations(_Wrapped().visit(tree)), path, "exec")
        return code

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update({FUNCTION: checked_function, CLASS: checked_class})
        super().exec_module(module)


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, inside = fullname.partition(".")
        if package != "blis_jax" or inside.split(".")[0] not in CHECKED or inside in LEFT_OUT:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


def install() -> None:
    """Check the modules that are imported from now on.

    Raises:
        RuntimeError: some are there already.
    """
    early = [n for n in sys.modules if n.startswith(tuple(f"blis_jax.{part}" for part in CHECKED))]
    if early:
        raise RuntimeError(f"{early[0]} was imported before its annotations could be checked")
    sys.meta_path.insert(0, _Finder())

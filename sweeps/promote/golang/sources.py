"""The file of a plugin around its compiled function: type, parameters, factory, readings, the target's method."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable

from blis_jax.core.types import SLO_CLASSES
from blis_jax.policies.numbers import Number
from sweeps.promote.golang import readings
from sweeps.promote.golang.compiler.functions import CODES, Input, PluginParameter
from sweeps.promote.golang.compiler.terms import HELPERS
from sweeps.promote.golang.parts import Plugin
from sweeps.promote.golang.target import TargetVersion


def source(plugin: Plugin) -> str:
    """The text of the plugin's file."""
    blocks = [
        _documentation(plugin),
        "import (\n{imports}\n)",
        *_types(plugin),
        *_parameters(plugin),
        *_struct(plugin),
        *readings.signals(plugin),
        readings.method(plugin),
        plugin.function.text,
        *_functions(plugin),
    ]
    text = "\n\n".join(filter(None, blocks)) + "\n"
    return (
        plugin.target.manifest["header"]
        + "\n"
        + text.replace("{imports}", imports(plugin.target, text))
    )


_LIBRARY = {
    "bytes": "bytes.", "context": "context.", "encoding/json": "json.", "fmt": "fmt.", "math": "math.",
    "math/rand/v2": "rand.", "os": "os.", "sync": "sync.", "testing": "testing.", "time": "time.", "errors": "errors.",
}  # fmt: skip


def imports(target: TargetVersion, text: str) -> str:
    """The lines of an import block for what the text names: Go's library, then the module's packages."""
    code = "\n".join(line.partition("//")[0] for line in text.splitlines())
    library = sorted(path for path, use in _LIBRARY.items() if _uses(code, use))
    own = [name for name in target.manifest["imports"] if _uses(code, f"{name}.")]
    lines = [f'\t"{path}"' for path in library]
    below = target.manifest["imports"]
    more = [f"\t{target.imported(name)}" for name in sorted(own, key=lambda name: below[name])]
    return "\n".join([*lines, *([""] if lines and more else []), *more])


def _uses(code: str, use: str) -> bool:
    at = code.find(use)
    while at >= 0:
        if at == 0 or not (code[at - 1].isalnum() or code[at - 1] in '_."/'):
            return True
        at = code.find(use, at + 1)
    return False


def _documentation(plugin: Plugin) -> str:
    rule = plugin.function.rule
    sentence = plugin.what.rstrip(".")
    return "\n".join(
        [
            f"// Package {plugin.names.package} has the {_KINDS[rule.kind]} {rule.name} of the simulator "
            "blis_jax as a plugin.",
            "//",
            *(f"// {line}" for line in wrapped(f"{sentence}.", 100)),
            "// The code is compiled from the simulated policy; README.md tells how, and what differs.",
            f"package {plugin.names.package}",
        ]
    )


_KINDS = {
    "scorer": "scorer", "admission": "admission policy", "routing": "routing policy", "order": "order of requests",
}  # fmt: skip


def wrapped(text: str, width: int) -> list[str]:
    """Lines of at most this width."""
    return textwrap.wrap(text, width)


def _types(plugin: Plugin) -> list[str]:
    names, manifest = plugin.names, plugin.target.manifest
    blocks = [
        f"// {names.constant} is the plugin's type in the configuration.\n"
        f'const {names.constant} = "{names.plugin_type}"',
        "// The plugin has the interface of its kind.\n"
        f"var _ {manifest['kinds'][plugin.kind]['interface']} = &{names.struct}{{}}",
    ]
    if plugin.attributes:
        blocks.append(
            f"// The plugin says which data it reads.\nvar _ fwkplugin.ConsumerPlugin = &{names.struct}{{}}"
        )
    if plugin.function.constants:
        lines = []
        for name, (value, origin) in plugin.function.constants.items():
            lines += [
                f"\t// {name} is written in the policy at {origin or 'its decision'}.",
                f"\t{name} = {value}",
            ]
        blocks.append("\n".join(["// Numbers that the policy fixes.", "const (", *lines, ")"]))
    if any(one.signal.is_code for one in plugin.function.inputs):
        lines = []
        for code, name in CODES.items():
            lines += [f"\t// {name} is the simulator's code.", f"\t{name} = {code}"]
        blocks.append("\n".join(["// SLO classes.", "const (", *lines, ")"]))
    return blocks


# --- parameters -----------------------------------------------------------------------------------


def described(one: PluginParameter) -> str:
    """Meaning, unit and bounds of a number."""
    unit = f", in {one.number.unit}" if one.number.unit else ""
    whole = ", whole" * one.number.is_whole
    return f"{one.number.meaning}{unit}; {one.number.allowed}{whole}"


def _parameters(plugin: Plugin) -> list[str]:
    given = plugin.function.parameters
    fields = []
    for one in given:
        fields += [
            f"\t// {one.field} is the {described(one)}.",
            f'\t{one.field} float64 `json:"{one.key}"`',
        ]
    if not given:
        return ["// parameters has no fields: the policy has no numbers.\ntype parameters struct{}"]
    defaults = [f"\tp.{one.field} = {float_text(one.number.default)}" for one in given]
    checks = [line for one in given for line in _check(one, plugin.names.constant)]
    return [
        "\n".join(
            [
                "// parameters are the numbers of the policy.",
                "type parameters struct {",
                *fields,
                "}",
            ]
        ),
        "\n".join(
            [
                "// defaults are the numbers that the policy declares.",
                "func defaults() parameters {",
                "\tvar p parameters",
                *defaults,
                "\treturn p",
                "}",
            ]
        ),
        "\n".join(
            [
                "// check tells which number is not allowed.",
                "func (p *parameters) check() error {",
                *checks,
                "\treturn nil",
                "}",
            ]
        ),
    ]


def float_text(value: float) -> str:
    """A float64 as Go reads it."""
    return repr(float(value))


def _check(one: PluginParameter, constant: str) -> list[str]:
    conditions = bounds(one.number, f"p.{one.field}")
    if not conditions:
        return []
    words = one.number.allowed + " and whole" * one.number.is_whole
    return [
        f"\tif {' || '.join(conditions)} {{",
        f'\t\treturn fmt.Errorf("plugin %q: {one.key} must be {words}, got %v", {constant}, p.{one.field})',
        "\t}",
    ]


def bounds(number: Number, name: str) -> list[str]:
    """Conditions under which a value is not allowed."""
    found = []
    if math.isfinite(number.low):
        found.append(f"{name} {'<=' if number.excludes_low else '<'} {number_text(number.low)}")
    if math.isfinite(number.high):
        found.append(f"{name} > {number_text(number.high)}")
    if number.is_whole:
        found.append(f"{name} != math.Trunc({name})")
    return found


def number_text(value: float) -> str:
    """A bound as Go reads it."""
    return str(int(value)) if value == int(value) else repr(value)


# --- the struct and its factory -------------------------------------------------------------------


def _struct(plugin: Plugin) -> list[str]:
    names, function = plugin.names, plugin.function
    fields = [
        "\t// typedName is what the configuration calls it.",
        "\ttypedName fwkplugin.TypedName",
    ]
    made = [f"\tplugin.typedName = fwkplugin.TypedName{{Type: {names.constant}, Name: name}}"]
    fields += ["\t// parameters are fixed when it is made.", "\tparameters parameters"]
    if plugin.has_clock:
        fields += ["\t// start is the time from which microseconds count.", "\tstart time.Time"]
        fields += ["\t// now counts microseconds since the start.", "\tnow func() int64"]
        made += [
            "\tplugin.start = time.Now()",
            "\tplugin.now = func() int64 { return time.Since(plugin.start).Microseconds() }",
        ]
    if function.draws:
        fields += ["\t// random draws from 0 to 1.", "\trandom func() float64"]
        made.append("\tplugin.random = rand.Float64")
    if plugin.has_state:
        fields += ["\t// mutex guards the state.", "\tmutex sync.Mutex"]
        fields += [
            "\t// state is what the policy remembers, in this replica of the endpoint picker only.",
            "\tstate state",
        ]
        made.append("\tplugin.state = plugin.parameters.first()")
    blocks = [
        "\n".join(
            [f"// {names.struct} is the plugin.", f"type {names.struct} struct {{", *fields, "}"]
        ),
        _factory(plugin, made),
        f"// TypedName is the plugin's type and name.\nfunc (s *{names.struct}) TypedName() fwkplugin.TypedName {{\n"
        "\treturn s.typedName\n}",
    ]
    if plugin.has_state:
        blocks += _state(plugin)
    if plugin.kind in ("scorer", "routing"):
        blocks.append(
            f"// Category is what the scorer prefers.\nfunc (s *{names.struct}) Category() fwksched.ScorerCategory {{\n"
            f"\treturn fwksched.{category(plugin)}\n}}"
        )
    if plugin.attributes:
        blocks.append(_consumes(plugin))
    more = str(plugin.target.manifest["kinds"][plugin.kind].get("more", ""))
    return [*blocks, more.replace("{struct}", names.struct).rstrip("\n")]


def category(plugin: Plugin) -> str:
    """Affinity where only cached prefixes count, Distribution where none do, else Balance."""
    paths = {one.signal.path for one in plugin.function.inputs if one.is_of_endpoint}
    has_prefix = "snapshots.prefix_match_blocks" in paths
    if not has_prefix:
        return "Distribution"
    return "Affinity" if len(paths) == 1 else "Balance"


def _factory(plugin: Plugin, made: list[str]) -> str:
    names, factory = plugin.names, plugin.target.manifest["factory"]
    decode = factory["decode"].replace("{type}", names.constant).rstrip("\n").split("\n")
    first = "defaults()" if plugin.function.parameters else "parameters{}"
    lines = [
        f"// {names.factory} makes the plugin from its configuration; an unknown parameter is an error.",
        f"func {names.factory}(name string, raw {factory['parameters']}, _ fwkplugin.Handle) "
        "(fwkplugin.Plugin, error) {",
        f"\tparameters := {first}",
        *(f"\t{line}" for line in decode),
    ]
    if any(bounds(one.number, "p") for one in plugin.function.parameters):
        lines += ["\tif err := parameters.check(); err != nil {", "\t\treturn nil, err", "\t}"]
    lines += [
        f"\tplugin := &{names.struct}{{parameters: parameters}}",
        *made,
        "\treturn plugin, nil",
        "}",
    ]
    return "\n".join(lines)


def _state(plugin: Plugin) -> list[str]:
    function = plugin.function
    fields = []
    for name, dtype in function.state.items():
        fields += [f"\t// {name} is the policy's own.", f"\t{name} {dtype}"]
    values = ", ".join(f"{name}: {text}" for name, text in function.start.items())
    receiver = "p *parameters" if "p." in values else "*parameters"
    return [
        "\n".join(
            [
                "// state is what the policy remembers: replicas do not share it, and a restart forgets it.",
                "type state struct {",
                *fields,
                "}",
            ]
        ),
        f"// first is the state before any decision.\nfunc ({receiver}) first() state {{\n"
        f"\treturn state{{{values}}}\n}}",
    ]


def _consumes(plugin: Plugin) -> str:
    manifest = plugin.target.manifest
    attributes = manifest["attributes"]
    entries = ", ".join(
        f"{attributes[name]['key']}: {attributes[name]['type']}{{}}" for name in plugin.attributes
    )
    value = manifest["consumes"]["value"].replace("{entries}", entries)
    return (
        f"// Consumes names the data that the plugin reads; without it the data would be absent.\n"
        f"func (s *{plugin.names.struct}) Consumes() {manifest['consumes']['result']} {{\n\treturn {value}\n}}"
    )


def _functions(plugin: Plugin) -> list[str]:
    manifest = plugin.target.manifest
    own = [HELPERS[name] for name in plugin.function.helpers]
    named = [one.declared["function"] for one in plugin.readings if "function" in one.declared]
    own += [manifest["functions"][name].rstrip("\n") for name in named]
    if any(one.signal.is_code for one in plugin.function.inputs):
        own.append(_slo_class(plugin.function.inputs))
    return own


def _slo_class(inputs: Iterable[Input]) -> str:
    cases = next(one.signal.declared["codes"] for one in inputs if one.signal.is_code)
    signs = {"equals": "==", "at_least": ">=", "at_most": "<="}
    lines = [
        "// sloClassOf is the class that requests with this priority have.",
        "func sloClassOf(priority int) int32 {",
        "\tswitch {",
    ]
    for case in cases:
        conditions = [f"priority {sign} {case[key]}" for key, sign in signs.items() if key in case]
        lines.append(f"\tcase {' && '.join(conditions)}:" if conditions else "\tdefault:")
        lines.append(f"\t\treturn {CODES[SLO_CLASSES.index(case['is'])]}")
    return "\n".join([*lines, "\t}", "}"])

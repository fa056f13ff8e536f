"""Write the files of a plugin around its compiled function: its source, its Go test, its README.

The texts come from templates in `templates/`. The source has type, parameters, factory, readings and the target's
method. The test checks that the plugin decides every vector as the simulated policy does, and keeps the contract.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from blis_jax.core.types import SLO_CLASSES
from blis_jax.policies.numbers import Number
from sweeps.promote.golang.functions import CODES, RANKS, Function, Input, PluginParameter
from sweeps.promote.golang.target import TargetReading, TargetVersion
from sweeps.promote.golang.terms import HELPERS, exported
from sweeps.tracks.problem import rendered


@dataclass(frozen=True)
class Names:
    """Hold the names of a plugin in Go."""

    plugin_type: str  # load-balance-scorer
    package: str  # loadbalance
    struct: str  # LoadBalanceScorer
    path: str  # of the package below the module
    file: str  # load_balance.go

    @property
    def constant(self) -> str:
        """Return the name of the exported constant that holds the type."""
        return f"{self.struct}Type"

    @property
    def factory(self) -> str:
        """Return the name of the exported factory."""
        return f"{self.struct}Factory"


@dataclass(frozen=True)
class Plugin:
    """Hold the data from which the texts of one plugin are rendered."""

    function: Function
    target: TargetVersion
    names: Names
    what: str  # the policy's own sentence

    @property
    def kind(self) -> str:
        """Return the kind of the rule."""
        return self.function.rule.kind

    @property
    def readings(self) -> list[TargetReading]:
        """Return the readings that the plugin takes from the target."""
        known = self.target.readings
        names = set(self.function.reads(self.target))
        if self.function.rank:
            names |= set(self.rank_readings)
        return [reading for name, reading in known.items() if name in names]

    def of(self, holder: str) -> list[TargetReading]:
        """Return the readings from one holder: metrics, an attribute, request, item or clock."""
        return [reading for reading in self.readings if reading.of == holder]

    @property
    def rank_readings(self) -> tuple[str, ...]:
        """Return the names of the readings that break ties in an order."""
        signal = self.target.signal(RANKS[self.function.rank])
        return signal.readings if signal else ()

    @property
    def attributes(self) -> list[str]:
        """Return the names of the endpoint attributes that the plugin reads."""
        return [
            name
            for name in self.target.manifest["attributes"]
            if any(reading.of == name for reading in self.readings)
        ]

    @property
    def reads_metrics(self) -> bool:
        """Return whether the plugin reads metrics, and so leaves out endpoints without metrics."""
        return any(reading.of == "metrics" for reading in self.readings)

    @property
    def reads_endpoints(self) -> bool:
        """Return whether the function takes the list of endpoints."""
        return "[]endpointSignals" in self.function.text

    @property
    def has_clock(self) -> bool:
        """Return whether the plugin reads the time."""
        return any(reading.of in ("clock", "item") for reading in self.readings)

    @property
    def has_state(self) -> bool:
        """Return whether the policy keeps a state."""
        return bool(self.function.state)

    @property
    def reads_request(self) -> bool:
        """Return whether the function takes signals of the request."""
        return "requestSignals" in self.function.text


TOLERANCE, NARROW_TOLERANCE = "1e-12", "1e-6"  # of float64, and of policies that compute in float32
LEAST_VECTORS = 1000
_SENTENCE_WIDTH = 100
_KINDS = {
    "scorer": "scorer", "admission": "admission policy", "routing": "routing policy", "order": "order of requests",
}  # fmt: skip
_METHODS = {
    "scorer": "rates the endpoints with the compiled policy.",
    "routing": "gives 1 to the endpoint that the compiled policy chooses, and 0 to the others.",
    "admission": "lets the request in if the compiled policy does.",
    "order": "",
}
_LIBRARY = {
    "bytes": "bytes.", "context": "context.", "encoding/json": "json.", "fmt": "fmt.", "math": "math.",
    "math/rand/v2": "rand.", "os": "os.", "sync": "sync.", "testing": "testing.", "time": "time.", "errors": "errors.",
}  # fmt: skip


def source(plugin: Plugin) -> str:
    """Return the text of the plugin's Go file."""
    function, manifest, names = plugin.function, plugin.target.manifest, plugin.names
    decode = manifest["factory"]["decode"].replace("{type}", names.constant).rstrip("\n")
    rejected = manifest["rejected"].replace("{message}", f'{names.constant} + ": rejected"')
    kind, items, requests = manifest["kinds"][plugin.kind], plugin.of("item"), plugin.of("request")
    clocks = plugin.of("clock")
    (rank,) = plugin.rank_readings if plugin.kind == "order" else ("",)
    return _rendered(
        "plugin.go.j2",
        plugin,
        sentence=textwrap.wrap(f"{plugin.what.rstrip('.')}.", _SENTENCE_WIDTH),
        kind_words=_KINDS[plugin.kind],
        codes=list(_codes(function.inputs)),
        code_names=CODES,
        bounds=bounds,
        decode=decode.split("\n"),
        start=", ".join(f"{name}: {text}" for name, text in function.start.items()),
        category=category(plugin),
        consumed=_consumed(plugin),
        more=str(kind.get("more", "")).replace("{struct}", names.struct).rstrip("\n"),
        items=items,
        originals=[item for item in items if "original" in item.declared["expression"]],
        requests=requests,
        clocks=clocks,
        clock_arguments=", ".join(f"{clock.go} {clock.type}" for clock in clocks),
        aggregates=any(read.signal.is_aggregated for read in function.of_request),
        rank=plugin.target.readings[rank].go if rank else "",
        read=_read,
        formula=lambda read: _formula(plugin.target, read),
        method=_method(plugin),
        method_words=_METHODS[plugin.kind],
        call=_call(plugin),
        rejected=rejected,
        functions=_functions(plugin),
    )


def test_text(plugin: Plugin) -> str:
    """Return the text of `…_test.go`."""
    manifest, known = plugin.target.manifest, {reading.name for reading in plugin.readings}

    def made(text: str) -> str:
        handle = manifest["factory"]["given"].replace("{json}", text)
        return f'{plugin.names.factory}("test", {handle}, nil)'

    def called(request: str, endpoints: str) -> str:
        call: str = manifest["kinds"][plugin.kind]["call"]
        return call.replace("{request}", request).replace("{endpoints}", endpoints)

    def time_of(name: str) -> str:
        microseconds = f"time.Duration(v.{exported(name)}[at]) * time.Microsecond"
        return f"start.Add({microseconds})" if name in known else "start"

    return _rendered(
        "plugin_test.go.j2",
        plugin,
        tolerance=NARROW_TOLERANCE if "float32" in plugin.function.text else TOLERANCE,
        is_narrow="float32" in plugin.function.text,
        least_vectors=LEAST_VECTORS,
        made=made,
        called=called,
        time_of=time_of,
        name_field=manifest["metadata_of"].partition("{")[2].partition(":")[0],
        has_request=bool(plugin.of("request")),
        request="requestOf(v)" if plugin.of("request") else "&fwksched.InferenceRequest{}",
        request_of=_request_of(plugin),
        metadata=lambda name: manifest["metadata_of"].replace("{name}", name),
        put=lambda name: _put(plugin, name),
    )


def readme(plugin: Plugin) -> str:
    """Return the README: what the plugin does, its parameters and signals, and its differences from the simulator."""
    reads_now = any(read.signal.path == "now_us" for read in plugin.function.inputs)
    return _rendered("README.md.j2", plugin, reads_now=reads_now)


def _rendered(template: str, plugin: Plugin, **values: Any) -> str:
    """Render a template with the plugin's data; add the imports that the text needs."""
    filters: dict[str, Callable[..., str]] = {
        "described": described,
        "real": _real,
        "exported": exported,
        "forbidden": _forbidden,
    }
    common = {
        "plugin": plugin,
        "function": plugin.function,
        "names": plugin.names,
        "manifest": plugin.target.manifest,
        "kind": plugin.target.manifest["kinds"][plugin.kind],
        "is_scorer": plugin.kind in ("scorer", "routing"),
        "bounded": [
            parameter for parameter in plugin.function.parameters if bounds(parameter.number, "p")
        ],
    }
    text = rendered("sweeps.promote.golang", template, filters, common | values)
    return with_imports(plugin.target, text)


def with_imports(target: TargetVersion, text: str) -> str:
    """Return Go text with single empty lines, plain symbols, and the block of imports that the text needs."""
    text = _plain(re.sub(r"\n{3,}", "\n\n", text).rstrip("\n") + "\n")
    return text.replace("{imports}", imports(target, text))


_WRITTEN = str.maketrans(
    {"µ": "u", "÷": "/", "−": "-", "×": "x", "…": "...", "≥": ">=", "≤": "<=", "²": "^2", "→": "->"}
)


def _plain(text: str) -> str:
    """Replace the symbols that the target's style avoids, such as `µ` and `≥`."""
    return text.translate(_WRITTEN)


def imports(target: TargetVersion, text: str) -> str:
    """Return the lines of an import block for the packages that the text uses: Go's library, then the module's."""
    code = "\n".join(line.partition("//")[0] for line in text.splitlines())
    below = target.manifest["imports"]
    library = sorted(path for path, use in _LIBRARY.items() if _uses(code, use))
    modules = sorted((name for name in below if _uses(code, f"{name}.")), key=below.__getitem__)
    lines = [f'\t"{path}"' for path in library]
    more = [f"\t{target.imported(name)}" for name in modules]
    return "\n".join([*lines, *([""] if lines and more else []), *more])


def _uses(code: str, use: str) -> bool:
    return re.search(rf'(?<![\w."/]){re.escape(use)}', code) is not None


# --- parameters -----------------------------------------------------------------------------------


def described(parameter: PluginParameter) -> str:
    """Return meaning, unit and bounds of a parameter."""
    number = parameter.number
    unit = f", in {number.unit}" if number.unit else ""
    return f"{number.meaning}{unit}; {number.allowed}{', whole' * number.is_whole}"


def _real(value: float) -> str:
    """Return a float64 as a Go literal."""
    return repr(float(value))


def bounds(number: Number, name: str) -> list[str]:
    """Return the Go conditions under which a value named `name` is not allowed."""
    conditions = []
    if math.isfinite(number.low):
        conditions.append(f"{name} {'<=' if number.excludes_low else '<'} {_bound(number.low)}")
    if math.isfinite(number.high):
        conditions.append(f"{name} > {_bound(number.high)}")
    if number.is_whole:
        conditions.append(f"{name} != math.Trunc({name})")
    return conditions


def _bound(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _forbidden(number: Number) -> str:
    """Return, as text, a value that the bounds do not allow."""
    if math.isfinite(number.low):
        return _real(number.low - 1)
    return _real(number.high + 1) if math.isfinite(number.high) else "0.5"


# --- readings and the method ----------------------------------------------------------------------


def _read(reading: TargetReading, holder: str) -> str:
    if "expression" in reading.declared:
        return str(reading.declared["expression"])
    if "function" in reading.declared:
        return f"{reading.declared['function']}({holder})"
    return f"{holder}.{reading.declared['field']}"


def _formula(target: TargetVersion, signal: Input) -> str:
    """Return the Go expression that computes a signal from readings."""
    readings = target.readings
    types = {name: reading.type for name, reading in readings.items()}
    return signal.signal.go(signal.dtype, types, lambda name: readings[name].go)


def _method(plugin: Plugin) -> str:
    """Return the head of the target's method, with `_` for unused arguments."""
    head: str = plugin.target.manifest["kinds"][plugin.kind]["method"]
    head = head.replace("{request}", "request" if plugin.of("request") else "_")
    return head.replace("{endpoints}", "endpoints" if plugin.reads_endpoints else "_")


def _call(plugin: Plugin) -> str:
    function = plugin.function
    of_request = [
        "request" if plugin.of("request") else "",
        "signals" if any(read.signal.is_aggregated for read in function.of_request) else "",
        *("s.now()" for _ in plugin.of("clock")),
    ]
    arguments = [
        "s.state" if plugin.has_state else "",
        "s.random" if function.draws else "",
        f"readRequest({', '.join(filter(None, of_request))})" if plugin.reads_request else "",
        "signals" if plugin.reads_endpoints else "",
    ]
    return f"s.parameters.{function.verb}({', '.join(filter(None, arguments))})"


def category(plugin: Plugin) -> str:
    """Return the plugin's category: Affinity if it reads cached prefixes alone, Distribution if none, else Balance."""
    paths = {read.signal.path for read in plugin.function.inputs if read.is_of_endpoint}
    if "snapshots.prefix_match_blocks" not in paths:
        return "Distribution"
    return "Affinity" if len(paths) == 1 else "Balance"


def _consumed(plugin: Plugin) -> str:
    attributes = plugin.target.manifest["attributes"]
    entries = (
        f"{attributes[name]['key']}: {attributes[name]['type']}{{}}" for name in plugin.attributes
    )
    return str(plugin.target.manifest["consumes"]["value"]).replace("{entries}", ", ".join(entries))


def _functions(plugin: Plugin) -> list[str]:
    """Return the Go helpers that the compiled function calls, and the manifest's functions that read values."""
    manifest = plugin.target.manifest
    declared = [reading.declared for reading in plugin.readings]
    named = [entry["function"] for entry in declared if "function" in entry]
    helpers = [HELPERS[name] for name in plugin.function.helpers]
    return helpers + [manifest["functions"][name].rstrip("\n") for name in named]


def _codes(inputs: tuple[Input, ...]) -> Iterator[tuple[str, str]]:
    """Yield (condition on the priority, constant of the SLO class); an empty condition covers all other priorities."""
    signs = {"equals": "==", "at_least": ">=", "at_most": "<="}
    coded = next((read for read in inputs if read.signal.is_code), None)
    for case in coded.signal.declared["codes"] if coded is not None else ():
        conditions = [f"priority {sign} {case[key]}" for key, sign in signs.items() if key in case]
        yield " && ".join(conditions), CODES[SLO_CLASSES.index(case["is"])]


# --- for the test ---------------------------------------------------------------------------------


def _request_of(plugin: Plugin) -> str:
    """Return the manifest's function that builds a request from a vector, with 0 for values that the plugin ignores."""
    text = str(plugin.target.manifest["request_of"]).rstrip("\n")
    known = {reading.name for reading in plugin.of("request")}
    is_order = plugin.kind == "order"
    if is_order:
        text = text.replace("requestOf(v vector)", "requestOf(v vector, at int)")
    for name in ("prompt_tokens", "priority"):
        value = f"v.{exported(name)}" + "[at]" * is_order if name in known else "0"
        text = text.replace(f"v.{{{name}}}", value)
    return text if known else text.replace("(v vector", "(_ vector").replace("at int", "_ int")


def _put(plugin: Plugin, name: str) -> str:
    """Return the Go code that sets an attribute from a vector, with 1 for readings that the plugin ignores."""
    put: str = plugin.target.manifest["attributes"][name]["put"]
    for reading in plugin.target.readings.values():
        value = f"v.{exported(reading.name)}[i]" if reading in plugin.readings else "1"
        put = put.replace(f"{{{reading.name}}}", value)
    return put

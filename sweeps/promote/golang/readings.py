"""How a plugin reads its signals, and the method that the target calls."""

from __future__ import annotations

from sweeps.promote.golang.compiler.functions import Input
from sweeps.promote.golang.parts import Plugin
from sweeps.promote.golang.target import TargetReading

_RANK = [
    "\t// rank decides between equal values.",
    "\trank int64",
    "\t// id decides between equal ranks.",
    "\tid string",
]


def signals(plugin: Plugin) -> list[str]:
    """The structs of signals, and the functions that fill them."""
    blocks = []
    if plugin.reads_endpoints:
        blocks.append(_struct("endpointSignals", "of an endpoint", plugin.function.of_endpoint))
    if plugin.reads_request:
        more = _RANK if plugin.function.rank else []
        blocks.append(_struct("requestSignals", "of the request", plugin.function.of_request, more))
    if plugin.kind == "order":
        return [*blocks, _read_item(plugin)]
    if plugin.reads_endpoints:
        blocks.append(_read_endpoints(plugin))
    if plugin.reads_request:
        blocks.append(_read_request(plugin))
    return blocks


def _struct(name: str, what: str, inputs: tuple[Input, ...], more: list[str] | None = None) -> str:
    lines = list(more or [])
    for one in inputs:
        lines += [
            f"\t// {one.field} is the simulator's {one.signal.path}.",
            f"\t{one.field} {one.dtype}",
        ]
    head = f"// {name} is what the policy knows {what}."
    if not lines:
        return f"{head}\ntype {name} struct{{}}"
    return "\n".join([head, f"type {name} struct {{", *lines, "}"])


def _assigned(plugin: Plugin, one: Input, target: str) -> list[str]:
    """A signal made of readings, with Map B's words where it is read."""
    types = {name: reading.type for name, reading in plugin.target.readings.items()}
    formula = one.signal.go(one.dtype, types, lambda name: plugin.target.readings[name].go)
    return [*(f"// {line}" for line in one.signal.freshness), f"{target}.{one.field} = {formula}"]


def _read(reading: TargetReading, holder: str) -> str:
    if "expression" in reading.declared:
        return str(reading.declared["expression"])
    if "function" in reading.declared:
        return f"{reading.declared['function']}({holder})"
    return f"{holder}.{reading.declared['field']}"


def _read_endpoints(plugin: Plugin) -> str:
    lines = [
        "// readEndpoints reads the signals of all endpoints"
        + ("; one without metrics is left out." if plugin.reads_metrics else "."),
        "func readEndpoints(endpoints []fwksched.Endpoint) ([]fwksched.Endpoint, []endpointSignals) {",
        "\tknown := make([]fwksched.Endpoint, 0, len(endpoints))",
        "\tsignals := make([]endpointSignals, 0, len(endpoints))",
        "\tfor _, endpoint := range endpoints {",
    ]
    body: list[str] = []
    if plugin.reads_metrics:
        body += ["metrics := endpoint.GetMetrics()", "if metrics == nil {", "\tcontinue", "}"]
        body += [
            f"{one.go} := {_read(one, 'metrics')}" for one in plugin.readings if one.of == "metrics"
        ]
    for name in plugin.attributes:
        body += _read_attribute(plugin, name)
    body.append("var read endpointSignals")
    for one in plugin.function.of_endpoint:
        body += _assigned(plugin, one, "read")
    body += ["known = append(known, endpoint)", "signals = append(signals, read)"]
    return "\n".join(
        [*lines, *(f"\t\t{line}" for line in body), "\t}", "\treturn known, signals", "}"]
    )


def _read_attribute(plugin: Plugin, name: str) -> list[str]:
    one = plugin.target.manifest["attributes"][name]
    readings = [reading for reading in plugin.readings if reading.of == name]
    return [
        *(f"var {reading.go} {reading.type}" for reading in readings),
        f"if value, ok := endpoint.Get({one['key']}); ok {{",
        f"\tif {one['name']}, ok := value.(*{one['type']}); ok && {one['name']} != nil {{",
        *(f"\t\t{reading.go} = {_read(reading, one['name'])}" for reading in readings),
        "\t}",
        "}",
    ]


def _read_request(plugin: Plugin) -> str:
    own = [one for one in plugin.readings if one.of == "request"]
    clock = [one for one in plugin.readings if one.of == "clock"]
    has_aggregate = any(one.signal.is_aggregated for one in plugin.function.of_request)
    arguments = [
        "request *fwksched.InferenceRequest" if own else "",
        "endpoints []endpointSignals" if has_aggregate else "",
        *(f"{one.go} {one.type}" for one in clock),
    ]
    lines = [
        "// readRequest reads the signals of the request.",
        f"func readRequest({', '.join(filter(None, arguments))}) requestSignals {{",
        "\tvar read requestSignals",
    ]
    body: list[str] = []
    for reading in own:
        body += [f"var {reading.go} {reading.type}"]
    if own:
        body += [
            "if request != nil {",
            *(f"\t{one.go} = {_read(one, 'request')}" for one in own),
            "}",
        ]
    for one in plugin.function.of_request:
        if one.signal.is_aggregated:
            body += [
                "for _, endpoint := range endpoints {",
                f"\tread.{one.field} = max(read.{one.field}, endpoint.{one.field})",
                "}",
            ]
        else:
            body += _assigned(plugin, one, "read")
    return "\n".join([*lines, *(f"\t{line}" for line in body), "\treturn read", "}"])


def _read_item(plugin: Plugin) -> str:
    readings = plugin.readings
    clock = [one for one in readings if one.of == "clock"]
    start = ["start time.Time"] if any(one.of == "item" for one in readings) else []
    arguments = ["item fwkfc.QueueItemAccessor", *start, *(f"{one.go} {one.type}" for one in clock)]
    lines = [
        "// readItem reads the signals of a request in a queue.",
        f"func readItem({', '.join(arguments)}) requestSignals {{",
        "\tvar read requestSignals",
    ]
    outer = [
        one for one in readings if one.of == "item" and "original" not in one.declared["expression"]
    ]
    inner = [one for one in readings if one.of == "item" and one not in outer]
    own = [one for one in readings if one.of == "request"]
    body = [f"{one.go} := {_read(one, 'item')}" for one in outer]
    body += [f"var {one.go} {one.type}" for one in (*inner, *own)]
    nested = [f"{one.go} = {_read(one, 'original')}" for one in inner] + ["read.id = original.ID()"]
    if own:
        nested += [
            "if request := original.InferenceRequest(); request != nil {",
            *(f"\t{one.go} = {_read(one, 'request')}" for one in own),
            "}",
        ]
    body += [
        "if original := item.OriginalRequest(); original != nil {",
        *(f"\t{line}" for line in nested),
        "}",
    ]
    (rank,) = plugin.rank_readings
    body.append(f"read.rank = {plugin.target.readings[rank].go}")
    for one in plugin.function.of_request:
        body += _assigned(plugin, one, "read")
    return "\n".join([*lines, *(f"\t{line}" for line in body), "\treturn read", "}"])


# --- the method -----------------------------------------------------------------------------------


def method(plugin: Plugin) -> str:
    """The method of the target's interface."""
    return _less(plugin) if plugin.kind == "order" else _decide(plugin)


def _decide(plugin: Plugin) -> str:
    kind = plugin.target.manifest["kinds"][plugin.kind]
    reads_request = any(one.of == "request" for one in plugin.readings)
    is_scorer = plugin.kind in ("scorer", "routing")
    head = kind["method"].replace("{request}", "request" if reads_request else "_")
    head = head.replace("{endpoints}", "endpoints" if plugin.reads_endpoints else "_")
    body: list[str] = []
    if is_scorer:
        body += [
            "result := make(map[fwksched.Endpoint]float64, len(endpoints))",
            "for _, endpoint := range endpoints {",
            "\tresult[endpoint] = 0",
            "}",
        ]
    if plugin.reads_endpoints:
        body.append(f"{'known' if is_scorer else '_'}, signals := readEndpoints(endpoints)")
        answer = "result" if is_scorer else "nil"
        if not is_scorer:
            body.append("// Without endpoints the scheduler answers.")
        body += ["if len(signals) == 0 {", f"\treturn {answer}", "}"]
    body += _call(plugin)
    body += {"scorer": _SCORES, "routing": _CHOSEN}.get(plugin.kind) or _admitted(plugin)
    words = {
        "scorer": "rates the endpoints with the compiled policy.",
        "routing": "gives 1 to the endpoint that the compiled policy chooses, and 0 to the others.",
        "admission": "lets the request in if the compiled policy does.",
    }
    name = head.partition("(")[0]
    return "\n".join(
        [
            f"// {name} {words[plugin.kind]}",
            f"func (s *{plugin.names.struct}) {head} {{",
            *(f"\t{line}" for line in body),
            "}",
        ]
    )


_SCORES = ["for i, score := range decision {", "\tresult[known[i]] = score", "}", "return result"]
_CHOSEN = ["result[known[decision]] = 1", "return result"]


def _call(plugin: Plugin) -> list[str]:
    function = plugin.function
    lines = []
    request_arguments = [
        "request" if any(one.of == "request" for one in plugin.readings) else "",
        "signals" if any(one.signal.is_aggregated for one in function.of_request) else "",
        *("s.now()" for one in plugin.readings if one.of == "clock"),
    ]
    arguments = [
        "s.state" if plugin.has_state else "",
        "s.random" if function.draws else "",
        f"readRequest({', '.join(filter(None, request_arguments))})"
        if plugin.reads_request
        else "",
        "signals" if plugin.reads_endpoints else "",
    ]
    call = f"s.parameters.{function.verb}({', '.join(filter(None, arguments))})"
    if plugin.has_state:
        lines += [
            "s.mutex.Lock()",
            "defer s.mutex.Unlock()",
            f"decision, after := {call}",
            "s.state = after",
        ]
    else:
        lines.append(f"decision := {call}")
    return lines


def _admitted(plugin: Plugin) -> list[str]:
    rejected = plugin.target.manifest["rejected"].replace(
        "{message}", f'{plugin.names.constant} + ": rejected"'
    )
    return ["if decision {", "\treturn nil", "}", f"return {rejected}"]


def _less(plugin: Plugin) -> str:
    start = ["s.start"] if any(one.of == "item" for one in plugin.readings) else []
    has_clock = any(one.of == "clock" for one in plugin.readings)
    more = "".join(f", {one}" for one in [*start, *(["now"] if has_clock else [])])
    lines = [
        "// Less tells whether a comes before b; a missing request comes last.",
        f"func (s *{plugin.names.struct}) {plugin.target.manifest['kinds']['order']['method']} {{",
        "\tif a == nil || b == nil {",
        "\t\treturn a != nil && b == nil",
        "\t}",
    ]
    if has_clock:
        lines.append("\tnow := s.now()")
    lines += [
        f"\tfirst, second := readItem(a{more}), readItem(b{more})",
        "\tleft, right := s.parameters.value(first), s.parameters.value(second)",
        "\tswitch {",
        "\tcase left != right:",
        "\t\treturn left < right",
        "\tcase first.rank != second.rank:",
        "\t\treturn first.rank < second.rank",
        "\tdefault:",
        "\t\treturn first.id < second.id",
        "\t}",
        "}",
    ]
    return "\n".join(lines)

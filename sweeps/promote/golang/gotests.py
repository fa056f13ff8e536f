"""The Go test of a plugin: it decides every vector as the simulated policy does, and keeps the target's contract."""

from __future__ import annotations

from sweeps.promote.golang.compiler.terms import exported
from sweeps.promote.golang.parts import Plugin
from sweeps.promote.golang.sources import bounds, imports

TOLERANCE = "1e-12"
LEAST_VECTORS = 1000


def test_text(plugin: Plugin) -> str:
    """The text of `…_test.go`."""
    blocks = [
        f"package {plugin.names.package}",
        "import (\n{imports}\n)",
        _vector(plugin),
        *_makers(plugin),
        _CLOSE,
        _equal(plugin),
        _unknown(plugin),
        *_bounds(plugin),
        *_contract(plugin),
    ]
    text = "\n\n".join(filter(None, blocks)) + "\n"
    return (
        plugin.target.manifest["header"]
        + "\n"
        + text.replace("{imports}", imports(plugin.target, text))
    )


def _vector(plugin: Plugin) -> str:
    lines = [
        "// vector is what the target says, and what the simulated policy decides on it.",
        "type vector struct {",
        "\t// Set is the place of the parameters.",
        "\tSet int",
        "\t// Size is the number of endpoints.",
        "\tSize int",
    ]
    for one in plugin.readings:
        is_row = one.is_of_endpoint or (plugin.kind == "order" and one.of != "clock")
        lines += [
            f"\t// {exported(one.name)} is a reading.",
            f"\t{exported(one.name)} {'[]' * is_row}{one.type}",
        ]
    if plugin.function.draws:
        lines += ["\t// Draws are given in place of random numbers.", "\tDraws []float64"]
    if plugin.has_state:
        lines += [
            "\t// Before is the state before the decision.",
            "\tBefore state",
            "\t// After is the state after it.",
            "\tAfter state",
        ]
    return "\n".join(
        [
            *lines,
            "\t// Expected is the decision; nil is a number that is not finite.",
            "\tExpected []*float64",
            "}",
        ]
    )


_CLOSE = f"""// isClose compares to {TOLERANCE}.
func isClose(got float64, want *float64) bool {{
	if want == nil {{
		return math.IsNaN(got) || math.IsInf(got, 0)
	}}
	return math.Abs(got-*want) <= {TOLERANCE}*max(1, math.Abs(*want))
}}"""


def _makers(plugin: Plugin) -> list[str]:
    names, manifest = plugin.names, plugin.target.manifest
    given = manifest["factory"]["given"].replace("{json}", "raw")
    plugin_of = [
        "// pluginOf makes the plugin from JSON.",
        f"func pluginOf(t *testing.T, raw []byte) *{names.struct} {{",
        "\tt.Helper()",
        f'\tmade, err := {names.factory}("test", {given}, nil)',
        "\tif err != nil {",
        "\t\tt.Fatal(err)",
        "\t}",
        f"\treturn made.(*{names.struct})",
        "}",
    ]
    if plugin.kind == "order":
        return ["\n".join(plugin_of), _request_of(plugin), *_items(plugin)]
    blocks = ["\n".join(plugin_of), _endpoints_of(plugin)]
    if _has_request(plugin):
        blocks.append(_request_of(plugin))
    return blocks


def _has_request(plugin: Plugin) -> bool:
    return any(one.of == "request" for one in plugin.readings)


def _request_of(plugin: Plugin) -> str:
    """The manifest's maker, with 0 for what the plugin does not read."""
    text = str(plugin.target.manifest["request_of"]).rstrip("\n")
    known = {one.name for one in plugin.readings if one.of == "request"}
    if plugin.kind == "order":
        text = text.replace("requestOf(v vector)", "requestOf(v vector, at int)")
    for name in ("prompt_tokens", "priority"):
        field = f"v.{{{name}}}"
        own = f"v.{exported(name)}" + "[at]" * (plugin.kind == "order")
        text = text.replace(field, own if name in known else "0")
    if not known:
        text = text.replace("(v vector", "(_ vector").replace("at int", "_ int")
    return f"// requestOf makes a request of a vector's readings.\n{text}"


def _endpoints_of(plugin: Plugin) -> str:
    attributes = plugin.target.manifest["attributes"]
    metrics = [one for one in plugin.readings if one.of == "metrics"]
    fields = ", ".join(f"{one.declared['field']}: v.{exported(one.name)}[i]" for one in metrics)
    named = _metadata(plugin, 'fmt.Sprint("endpoint-", i)')
    lines = [
        "// endpointsOf makes the endpoints of a vector's readings.",
        "func endpointsOf(v vector) []fwksched.Endpoint {",
        "\tendpoints := make([]fwksched.Endpoint, v.Size)",
        "\tfor i := range endpoints {",
        f"\t\tmetadata := {named}",
        f"\t\tmetrics := &fwkdl.Metrics{{{fields}}}",
        "\t\tattributes := fwkdl.NewAttributes()",
    ]
    for name in plugin.attributes:
        put = attributes[name]["put"]
        for one in plugin.target.readings.values():
            own = f"v.{exported(one.name)}[i]" if one in plugin.readings else "1"
            put = put.replace(f"{{{one.name}}}", own)
        lines.append(f"\t\tattributes.Put({attributes[name]['key']}, {put})")
    return "\n".join(
        [
            *lines,
            "\t\tendpoints[i] = fwksched.NewEndpoint(metadata, metrics, attributes)",
            "\t}",
            "\treturn endpoints",
            "}",
        ]
    )


def _metadata(plugin: Plugin, name: str) -> str:
    return str(plugin.target.manifest["metadata_of"]).replace("{name}", name)


def _items(plugin: Plugin) -> list[str]:
    times = {
        name: f"time.Duration(v.{exported(name)}[at]) * time.Microsecond"
        for name in ("received_us", "enqueued_us")
    }
    known = {one.name for one in plugin.readings}
    received, enqueued = (
        f"start.Add({times[name]})" if name in known else "start" for name in times
    )
    return [
        """// queued is a request in a queue.
type queued struct {
	fwkfc.QueueItemAccessor
	original fwkfc.FlowControlRequest
	entered  time.Time
}

func (q *queued) OriginalRequest() fwkfc.FlowControlRequest { return q.original }

func (q *queued) EnqueueTime() time.Time { return q.entered }""",
        """// flowing is its request.
type flowing struct {
	fwkfc.FlowControlRequest
	id       string
	received time.Time
	request  *fwksched.InferenceRequest
}

func (f *flowing) ID() string { return f.id }

func (f *flowing) ReceivedTimestamp() time.Time { return f.received }

func (f *flowing) InferenceRequest() *fwksched.InferenceRequest { return f.request }""",
        f"""// itemOf makes a queued request of a vector's readings.
func itemOf(v vector, at int, start time.Time) *queued {{
	original := &flowing{{id: fmt.Sprint("request-", at), received: {received}, request: requestOf(v, at)}}
	return &queued{{original: original, entered: {enqueued}}}
}}""",
    ]


def _equal(plugin: Plugin) -> str:
    body = ["s := pluginOf(t, file.Parameters[v.Set])"]
    if any(one.of == "clock" for one in plugin.readings):
        body.append("s.now = func() int64 { return v.NowUs }")
    if plugin.function.draws:
        body += [
            "draws := v.Draws",
            "s.random = func() float64 {",
            "\tnext := draws[0]",
            "\tdraws = draws[1:]",
            "\treturn next",
            "}",
        ]
    if plugin.has_state:
        body.append("s.state = v.Before")
    body += _decided(plugin)
    if plugin.has_state:
        for field, dtype in plugin.function.state.items():
            compared = (
                f"want := float64(v.After.{field}); !isClose(float64(s.state.{field}), &want)"
            )
            if dtype == "bool":
                compared = f"want := v.After.{field}; s.state.{field} != want"
            body += [
                f"if {compared} {{",
                f'\tt.Errorf("vector %d: the state {field} is %v, in the simulator %v", n, s.state.{field}, want)',
                "}",
            ]
    return "\n".join(
        [
            "// TestEqualToSimulator decides every vector as the simulated policy does.",
            "func TestEqualToSimulator(t *testing.T) {",
            '\traw, err := os.ReadFile("testdata/vectors.json")',
            "\tif err != nil {",
            "\t\tt.Fatal(err)",
            "\t}",
            "\tvar file struct {",
            "\t\tParameters []json.RawMessage",
            "\t\tVectors    []vector",
            "\t}",
            "\tif err := json.Unmarshal(raw, &file); err != nil {",
            "\t\tt.Fatal(err)",
            "\t}",
            f"\tif len(file.Vectors) < {LEAST_VECTORS} {{",
            f'\t\tt.Fatalf("%d vectors, want {LEAST_VECTORS}", len(file.Vectors))',
            "\t}",
            "\tfor n, v := range file.Vectors {",
            *(f"\t\t{line}" for line in body),
            "\t}",
            "}",
        ]
    )


def _decided(plugin: Plugin) -> list[str]:
    kind = plugin.target.manifest["kinds"][plugin.kind]
    request = "requestOf(v)" if _has_request(plugin) else "&fwksched.InferenceRequest{}"
    call = kind["call"].replace("{request}", request)
    if plugin.kind == "order":
        call = (
            kind["call"]
            .replace("{request}", "itemOf(v, 0, s.start)")
            .replace("{endpoints}", "itemOf(v, 1, s.start)")
        )
        return [
            f"if got := s.{call}; got != (*v.Expected[0] == 1) {{",
            '\tt.Errorf("vector %d: first before second is %v", n, got)',
            "}",
        ]
    if plugin.kind == "admission":
        call = call.replace("{endpoints}", "endpointsOf(v)")
        return [
            f"if got := s.{call}; (got == nil) != (*v.Expected[0] == 1) {{",
            '\tt.Errorf("vector %d: the answer is %v", n, got)',
            "}",
        ]
    call = call.replace("{endpoints}", "endpoints")
    lines = ["endpoints := endpointsOf(v)", f"got := s.{call}"]
    if plugin.kind == "routing":
        return [
            *lines,
            "for i, endpoint := range endpoints {",
            "\tif isIt := i == int(*v.Expected[0]); (got[endpoint] == 1) != isIt {",
            '\t\tt.Errorf("vector %d: endpoint %d has %v, chosen is %v", n, i, got[endpoint], *v.Expected[0])',
            "\t}",
            "}",
        ]
    return [
        *lines,
        "for i, endpoint := range endpoints {",
        "\tif !isClose(got[endpoint], v.Expected[i]) {",
        '\t\tt.Errorf("vector %d: endpoint %d scores %v, in the simulator %v", n, i, got[endpoint], v.Expected[i])',
        "\t}",
        "}",
    ]


# --- the target's contract ------------------------------------------------------------------------


def _made(plugin: Plugin, text: str) -> str:
    given = plugin.target.manifest["factory"]["given"].replace("{json}", f"[]byte(`{text}`)")
    return f'{plugin.names.factory}("test", {given}, nil)'


def _unknown(plugin: Plugin) -> str:
    bad = '{"noSuchParameter": 1}'
    return "\n".join(
        [
            "// TestUnknownParameter is refused.",
            "func TestUnknownParameter(t *testing.T) {",
            f"\tif _, err := {_made(plugin, bad)}; err == nil {{",
            '\t\tt.Error("an unknown parameter was accepted")',
            "\t}",
            "}",
        ]
    )


def _bounds(plugin: Plugin) -> list[str]:
    cases = []
    for one in plugin.function.parameters:
        if bounds(one.number, "p"):
            cases.append(f'"{{\\"{one.key}\\": {_forbidden(one.number)}}}"')
    if not cases:
        return []
    given = plugin.target.manifest["factory"]["given"].replace("{json}", "[]byte(raw)")
    return [
        "\n".join(
            [
                "// TestBounds refuses numbers that the policy does not allow.",
                "func TestBounds(t *testing.T) {",
                "\tfor _, raw := range []string{",
                *(f"\t\t{case}," for case in cases),
                "\t} {",
                f'\t\tif _, err := {plugin.names.factory}("test", {given}, nil); err == nil {{',
                '\t\t\tt.Errorf("%s was accepted", raw)',
                "\t\t}",
                "\t}",
                "}",
            ]
        )
    ]


def _forbidden(number: object) -> str:
    low, high = number.low, number.high  # type: ignore[attr-defined]
    if low > float("-inf"):
        return repr(float(low) - 1)
    return repr(float(high) + 1) if high < float("inf") else "0.5"


def _contract(plugin: Plugin) -> list[str]:
    if plugin.kind == "order":
        return [_MISSING_ITEM.replace("{maker}", "pluginOf(t, []byte(`{}`))")]
    blocks = []
    if plugin.kind in ("scorer", "routing") and plugin.reads_metrics:
        call = plugin.target.manifest["kinds"][plugin.kind]["call"]
        call = call.replace("{request}", "&fwksched.InferenceRequest{}").replace(
            "{endpoints}", "[]fwksched.Endpoint{silent}"
        )
        silent = _metadata(plugin, '"silent"')
        blocks.append(_MISSING_METRICS.replace("{call}", call).replace("{metadata}", silent))
    return blocks


_MISSING_ITEM = """// TestMissing puts a missing request last.
func TestMissing(t *testing.T) {
	s := {maker}
	there := &queued{}
	if s.Less(nil, nil) || s.Less(nil, there) || !s.Less(there, nil) {
		t.Error("a missing request does not come last")
	}
}"""
_MISSING_METRICS = """// TestMissingMetrics gives an endpoint without metrics the score 0.
func TestMissingMetrics(t *testing.T) {
	silent := fwksched.NewEndpoint({metadata}, nil, nil)
	got := pluginOf(t, []byte(`{}`)).{call}
	if len(got) != 1 || got[silent] != 0 {
		t.Errorf("the scores are %v", got)
	}
}"""

"""What is compiled: the text of functions, what is left out of it, and what is refused."""

from __future__ import annotations

import re

import pytest

from sweeps.promote import DEFAULT_TARGET
from sweeps.promote.golang import target as targets
from sweeps.promote.golang.functions import Function, function_of
from sweeps.promote.golang.tracing import PromotedRule, compiled
from sweeps.promote.promotion import NotMappedError
from tests.sweeps.promote.golang.rules import rule, user_rule

pytestmark = [
    pytest.mark.lenient_promotion,  # as the engine traces a user's policy
    pytest.mark.filterwarnings("ignore:the scorer .* outside 0 to 1"),  # only functions matter here
]


def function(one: PromotedRule) -> Function:
    return function_of(compiled(one), targets.load(DEFAULT_TARGET))


def body(one: PromotedRule) -> list[str]:
    return [line.strip() for line in function(one).text.splitlines() if not line.startswith("//")]


def test_arrays_become_loops_and_values_keep_the_policy_s_names() -> None:
    assert body(rule("scorer", "kv-pressure")) == [
        "func (*parameters) scores(endpoints []endpointSignals) []float64 {",
        "most := math.Inf(-1)",
        "for _, endpoint := range endpoints {",
        "most = max(most, endpoint.freeKvBlocks)",
        "}",
        "scores := make([]float64, len(endpoints))",
        "for i, endpoint := range endpoints {",
        "share := endpoint.freeKvBlocks / max(most, 1.0)",
        "score := 0.0",
        "if most > 0.0 {",
        "score = share",
        "}",
        "scores[i] = score",
        "}",
        "return scores",
        "}",
    ]


def test_a_product_that_enters_a_sum_is_rounded_by_itself() -> None:
    text = function(rule("scorer", "slo-priority")).text
    assert "scores[i] = float64(bias*value) + neutral" in text
    assert "neutral := float64((1.0 - bias) * 0.5)" in text  # across statements too


def test_numbers_without_effect_are_no_parameters() -> None:
    """The policy's index stays empty in BLIS, so it lets everything in whatever its eight numbers are."""
    found = function(rule("admission", "predictive-slo"))
    assert found.parameters == () and found.inputs == ()
    assert "return true" in found.text


def test_thresholds_are_parameters_and_other_numbers_have_their_line() -> None:
    found = function(rule("admission", "sweeps/strategies/policies/gates.py:burst_throttled"))
    assert [one.key for one in found.parameters] == ["limitPerS", "standardFactor", "windowUs"]
    ((value, origin),) = found.constants.values()
    assert value == "1e-06" and re.fullmatch(r"sweeps/strategies/policies/gates\.py:\d+", origin)
    assert not re.search(r"\d{2,}\.\d|1e", found.text.replace("fixed1eMinus06", ""))


def test_a_state_starts_as_the_policy_says() -> None:
    found = function(rule("admission", "token-bucket"))
    assert found.start == {"Tokens": "p.Capacity", "RefilledUs": "0.0"}
    assert "before state" in found.text and "state{Tokens: " in found.text
    own = function(user_rule("admission", "smoothed_coin"))
    assert own.start == {"Load": "0.5 * p.Queue", "Count": "0"}
    assert own.state == {"Load": "float64", "Count": "int32"}


def test_classes_have_their_names() -> None:
    text = function(rule("admission", "slo-gated")).text
    assert "request.sloClass <= sloStandard" in text


def test_the_number_of_endpoints_is_their_number() -> None:
    assert "float64(len(endpoints))" in function(user_rule("scorer", "real_functions")).text


def test_draws_of_one_key_are_one_draw_and_pairs_are_loops_in_loops() -> None:
    text = function(rule("routing", "power-of-two")).text
    assert text.count("random()") == 1
    assert "for j := range endpoints {" in text


def test_an_order_computes_the_value_of_one_request() -> None:
    found = function(user_rule("priority", "short_first"))
    assert found.rank == "request.tie_rank"
    assert "func (p *parameters) value(request requestSignals) float64 {" in found.text
    assert (
        "return p.PerToken * float64(request.inputLen)" in found.text
    )  # least first, negated twice


@pytest.mark.parametrize(
    ("kind", "name", "says"),
    [
        ("scorer", "sorts", r"the primitive sort at \S*user_policies\.py:\d+ has no counterpart in Go; rank with"),
        ("scorer", "loops", r"the primitive (scan|while) at \S*user_policies\.py:\d+ has no .*; write the loop out"),
        ("scorer", "counts_endpoints", r"at \S*user_policies\.py:\d+ has length \d+ when an endpoint"),
        ("scorer", "branches_on_size", r"another length for another number of endpoints"),
        ("scorer", "single_precision", r"dtype float32 at \S*user_policies\.py:\d+ has no counterpart; compute in"),
        ("scorer", "observes", r"told of completions at .*user_policies\.py:\d+.*leave the observer out"),
        ("admission", "reads_rejections", r"signal snapshots\.num_rejected at \S*user_policies\.py:\d+ has no"),
        ("scheduler", "looks_around", r"reduce at .* more than one request"),
        ("scheduler", "ranks_itself", r"rank at \S*user_policies\.py:\d+ is computed"),
    ],
)  # fmt: skip
def test_what_no_plugin_can_do_ends_in_a_sentence_with_its_line(
    kind: str, name: str, says: str
) -> None:
    with pytest.raises(NotMappedError, match=says) as caught:
        function(user_rule(kind, name))
    assert "\n" not in str(caught.value) and ";" in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "name", "says"),
    [
        ("routing", "prefix-affinity", "its state instance at .* is an array"),
        ("routing", "epoch-adaptive", "signal snapshots.num_rejected at .*by_score.py:"),
        (
            "routing",
            "sweeps/strategies/policies/hashes.py:session_hashed",
            "random draw that a whole run repeats at .*hashes.py:",
        ),
        (
            "admission",
            "sweeps/strategies/policies/gates.py:kv_gated",
            "signal picked at .*gates.py:.*run before scheduling",
        ),
    ],
)
def test_shipped_policies_that_cannot_be_plugins_say_why(kind: str, name: str, says: str) -> None:
    with pytest.raises(NotMappedError, match=says):
        function(rule(kind, name))

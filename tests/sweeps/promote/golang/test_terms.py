"""Go expressions in gofmt's form."""

from __future__ import annotations

import subprocess

import pytest

from sweeps.promote.golang.target import MISSING, find_go, find_gofmt
from sweeps.promote.golang.terms import (
    Binary,
    Expression,
    Index,
    Text,
    Unary,
    call,
    printed,
)

A, B, C, D = (Text(name) for name in "abcd")
SUM, PRODUCT = Binary("+", A, B), Binary("*", A, B)
CASES: dict[str, Expression] = {
    "a + b": SUM,
    "a * b": PRODUCT,
    "a*b + c": Binary("+", PRODUCT, C),
    "(a + b) * c": Binary("*", SUM, C),
    "a - (b - c)": Binary("-", A, Binary("-", B, C)),
    "a / (b * c)": Binary("/", A, Binary("*", B, C)),
    "-(a + b)": Unary("-", SUM),
    "a - -b": Binary("-", A, Unary("-", B)),
    "a + b & ^c": Binary("+", A, Binary("&", B, Unary("^", C))),
    "min(a+b, c)": call("min", SUM, C),
    "float64(a * b)": call("float64", PRODUCT),
    "float64(a*b) + c": Binary("+", call("float64", PRODUCT), C),
    "a*b <= c || !(c < d)": Binary("||", Binary("<=", PRODUCT, C), Unary("!", Binary("<", C, D))),
    "a + b*c - d": Binary("-", Binary("+", A, Binary("*", B, C)), D),
    "max(a*b, (c+d)/a) * c": Binary(
        "*", call("max", PRODUCT, Binary("/", Binary("+", C, D), A)), C
    ),
    "a[b+c].x": Index("a", Binary("+", B, C), ".x"),
    "(a + b*c) * (d - a)": Binary("*", Binary("+", A, Binary("*", B, C)), Binary("-", D, A)),
}


@pytest.mark.parametrize("text", CASES)
def test_an_expression_has_parentheses_and_blanks_where_gofmt_has_them(text: str) -> None:
    assert printed(CASES[text]) == text


def test_gofmt_agrees() -> None:
    go = find_go()
    if go is None:
        pytest.skip(MISSING)
    lines = "\n".join(f"\t_ = {printed(one)}" for one in CASES.values())
    source = f"package x\n\nfunc f() {{\n{lines}\n}}\n"
    gofmt = find_gofmt(go)
    assert gofmt is not None
    done = subprocess.run([gofmt], input=source, capture_output=True, text=True, check=True)
    assert done.stdout == source

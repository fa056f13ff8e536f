"""The options of these commands: how many made-up cases are drawn, and a recorded comparison as a world."""

from __future__ import annotations

import argparse


def asked(description: str | None, name: str, default: int) -> int:
    """The number that the command line asks for with `--name`."""
    number: int = getattr(_parser(description, name, default).parse_args(), name)
    return number


def asked_with_recorded(description: str | None, default: int) -> argparse.Namespace:
    """`samples`, and a recorded comparison with a metric and an `slo_class` of it; None if there is none."""
    parser = _parser(description, "samples", default)
    parser.add_argument("--comparison", default=None, help="result file whose seeds are a world")
    parser.add_argument("--metric", default="pooled_ttft_p99_ms", help="of its runs")
    parser.add_argument("--class", dest="slo_class", default="critical", help="of its requests")
    return parser.parse_args()


def _parser(description: str | None, name: str, default: int) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        f"--{name}", type=int, default=default, metavar="N", help=f"{name} of each kind ({default})"
    )
    return parser

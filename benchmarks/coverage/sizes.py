"""The one option of these commands: how many made-up cases are drawn."""

from __future__ import annotations

import argparse


def asked(description: str | None, name: str, default: int) -> int:
    """The number that the command line asks for with `--name`."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        f"--{name}", type=int, default=default, metavar="N", help=f"{name} of each kind ({default})"
    )
    number: int = getattr(parser.parse_args(), name)
    return number

"""`blis-jax options`: what options mean and which defaults they have, as the page docs/options.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from blis_jax.commands import cli
from blis_jax.commands.door.catalogue import options_of, parsers, takes_value
from blis_jax.commands.help import SHARED, VARIES, Shared, shown
from blis_jax.commands.parser import Parser
from blis_jax.reports.render import table_text

NAME = "blis_jax.commands.door.options_page"
_DESCRIPTION = """\
Print every option of every command as Markdown: first those that mean the same everywhere, with their
other spellings, then those of each command.
"""
_HEAD = """\
# Options

This page is made by `blis-jax options > docs/options.md`, from what the commands declare; a test keeps it true.

## Options that mean the same in every command

Another spelling, an older one or that of vLLM, is understood wherever the option is. Settings of vLLM's engine have
its names too, such as `--max-num-seqs` and `--tensor-parallel-size` ([Settings](reference/settings.md)).
`blis_jax.run` keeps BLIS's own names, `--workload-spec`, `--results-path` and `--seed`; it understands `--workload`
and `--output` too.

"""
_STRATEGIES = """
`vllm` is servers as vLLM starts them, `llm-d-default` puts llm-d's router before them.
`baseline` and `iter00_baseline` are one strategy in every command; `it08_opt` is `iter08_token_budget@published`.

## Options of each command
"""


_FOLDED = """\
<details markdown><summary>options of blis-jax {name}</summary>

{rows}

</details>
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return cli.print_page(NAME, _DESCRIPTION, page, arguments)


def page() -> str:
    """Return the page docs/options.md: shared options first, then those of each command."""
    made = parsers()
    shared = [
        _shared_row(option)
        for option in SHARED
        if any(_has(parser, option.name) for parser in made.values())
    ]
    head = ("option", "other spellings", "meaning", "default")
    text = f"{_HEAD}{table_text(head, shared)}\n{_STRATEGIES}"
    for name, parser in made.items():
        rows = table_text(("option", "value", "meaning"), _rows_of(parser))
        text += f"\n### `blis-jax {name}`\n\n{_FOLDED.format(name=name, rows=rows)}"
    return text


def _has(parser: Parser, name: str) -> bool:
    return any(f"--{name}" == option.option_strings[0] for option in options_of(parser))


def _shared_row(option: Shared) -> tuple[str, ...]:
    also = ", ".join(f"`--{word}`" for word in option.also)
    default = (
        "" if option.default is None
        else "by command" if option.default is VARIES
        else _code(option.default)
    )  # fmt: skip
    reasons: dict[tuple[Any, str], list[str]] = {}
    for command, why in option.elsewhere.items():
        reasons.setdefault(why, []).append(_code(command))
    others = [
        f"{_code(other)} in {', '.join(commands)}, where {reason}"
        for (other, reason), commands in reasons.items()
    ]
    defaults = "; ".join(filter(None, [default, *others]))
    return f"`--{option.name}`", also, option.meaning, defaults


def _code(value: object) -> str:
    return f"`{shown(value)}`"


def _rows_of(parser: Parser) -> Iterator[tuple[str, ...]]:
    """Yield a row for each option of one command."""
    for option in options_of(parser):
        if option.dest != "help":
            value = f"`{option.metavar}`" if takes_value(option) else ""
            text = (option.help or "").replace("%%", "%").replace("[", "\\[")
            yield (
                f"`{option.option_strings[0]}`",
                *(cell.replace("|", "\\|") for cell in (value, text)),
            )

"""`blis-jax options`: what options mean and which defaults they have, as the page docs/options.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blis_jax.commands import cli
from blis_jax.commands.door.catalogue import options_of, parsers, takes_value
from blis_jax.commands.help import SHARED, VARIES, Shared, shown
from blis_jax.commands.parser import Parser

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
    rows = ["| option | other spellings | meaning | default |", "|---|---|---|---|"]
    rows += [
        _shared_row(option)
        for option in SHARED
        if any(_has(parser, option.name) for parser in made.values())
    ]
    text = _HEAD + "\n".join(rows) + "\n" + _STRATEGIES
    for name, parser in made.items():
        own = "\n".join(_own_rows(parser))
        text += f"\n### `blis-jax {name}`\n\n{_FOLDED.format(name=name, rows=own)}"
    return text


def _has(parser: Parser, name: str) -> bool:
    return any(f"--{name}" == one.option_strings[0] for one in options_of(parser))


def _shared_row(one: Shared) -> str:
    also = ", ".join(f"`--{word}`" for word in one.also)
    default = (
        "" if one.default is None else "by command" if one.default is VARIES else _code(one.default)
    )
    reasons: dict[tuple[Any, str], list[str]] = {}
    for command, why in one.elsewhere.items():
        reasons.setdefault(why, []).append(_code(command))
    others = [
        f"{_code(other)} in {', '.join(commands)}, where {reason}"
        for (other, reason), commands in reasons.items()
    ]
    return f"| `--{one.name}` | {also} | {one.meaning} | {'; '.join(filter(None, [default, *others]))} |"


def _code(value: object) -> str:
    return f"`{shown(value)}`"


def _own_rows(parser: Parser) -> list[str]:
    rows = ["| option | value | meaning |", "|---|---|---|"]
    for option in options_of(parser):
        if option.dest != "help":
            value = f"`{option.metavar}`" if takes_value(option) else ""
            text = (option.help or "").replace("%%", "%").replace("|", "\\|").replace("[", "\\[")
            rows.append(
                f"| `{option.option_strings[0]}` | {value.replace('|', chr(92) + '|')} | {text} |"
            )
    return rows

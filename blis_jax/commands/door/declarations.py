"""Made from the commands' parsers: `blis-jax completion SHELL`, and `blis-jax options`, the page docs/options.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from blis_jax.commands.door.catalogue import (
    COMMANDS,
    actions_of,
    options_of,
    parsers,
    takes_value,
    words_for,
)
from blis_jax.commands.help import SHARED, VARIES, Shared, first_spelling, shown
from blis_jax.commands.options import CommandOptions, word
from blis_jax.commands.parser import Parser
from blis_jax.commands.values import OneOf
from blis_jax.errors import ConfigError
from blis_jax.reports.render import table_text

NAME = "blis_jax.commands.door.declarations"
_COMPLETION = """\
Print a script that completes commands, options, and the names of workloads, strategies and models.
"""
_EXAMPLES = """\
examples:
  for this shell, bash or zsh:
    eval "$(blis-jax completion bash)"
    eval "$(blis-jax completion zsh)"

  for every fish shell to come:
    blis-jax completion fish > ~/.config/fish/completions/blis-jax.fish
"""
OWN_OPTIONS = ("--help", "--version")


def _first_words() -> dict[str, tuple[str, ...]]:
    """Return the allowed first words, each with the second words that it needs, if any."""
    firsts = dict.fromkeys(name.split()[0] for name in COMMANDS)
    return {first: actions_of(first) for first in firsts}


# --- bash and zsh ---------------------------------------------------------------------------------

_BASH = """\
# completion of blis-jax for bash
_blis_jax() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}"
    local first="${{COMP_WORDS[1]}}" second="${{COMP_WORDS[2]}}" place="$COMP_CWORD" list=""
{table}
    COMPREPLY=($(compgen -W "$list" -- "$current"))
}}
complete -o default -F _blis_jax blis-jax
"""
_ZSH = """\
#compdef blis-jax
_blis_jax() {{
    local current="${{words[CURRENT]}}" previous="${{words[CURRENT-1]}}"
    local first="${{words[2]}}" second="${{words[3]}}" place="$((CURRENT-1))" list=""
{table}
    if [[ -n "$list" ]]; then compadd -- ${{=list}}; else _files; fi
}}
compdef _blis_jax blis-jax
"""


def _table() -> str:
    """Return shell code, for bash and zsh alike, that sets `list` from first, second and previous word."""
    firsts = _first_words()
    lines = [
        '    case "$place $first" in',
        f'        "1 "*) list="{" ".join((*firsts, *OWN_OPTIONS))}" ;;',
    ]
    made = parsers()
    for first, seconds in firsts.items():
        if seconds:
            words = [*seconds, *(_words(first, made[first]) if first in made else ())]
            lines.append(f'        "2 {first}") list="{" ".join(words)}" ;;')
    pairs = "|".join(f'"{first} {second}"' for first, them in firsts.items() for second in them)
    lines += [
        "        *)",
        f'            case "$first $second" in {pairs}) first="$first $second" ;; esac',
        '            case "$first $previous" in',
    ]
    for name, parser in made.items():
        lines += [f"                {line}" for line in _after_options(name, parser)]
    lines += ["                *)", '                    case "$first" in']
    for name, parser in made.items():
        lines.append(
            f'                        "{name}") list="{" ".join(_words(name, parser))}" ;;'
        )
    return "\n".join([*lines, "                    esac ;;", "            esac ;;", "    esac"])


def _after_options(name: str, parser: Parser) -> Iterator[str]:
    """Return the shell cases for options with a value: complete its words, or any file."""
    patterns: dict[str, list[str]] = {}
    for option in filter(takes_value, options_of(parser)):
        words = " ".join(words_for(option))
        patterns.setdefault(words, []).extend(f'"{name} {text}"' for text in option.option_strings)
    for words, texts in patterns.items():
        yield f'{"|".join(texts)}) list="{words}" ;;'


def _words(name: str, parser: Parser) -> list[str]:
    """Return the words allowed as a command's positional arguments, then its options."""
    positions = [action for action in parser._actions if not action.option_strings]
    words = [word for action in positions for word in words_for(action)]
    return [*words, *(option.option_strings[-1 if option.nargs == 0 and option.dest == "help" else 0]
                      for option in options_of(parser))]  # fmt: skip


# --- fish -----------------------------------------------------------------------------------------


def _fish() -> str:
    lines = ["# completion of blis-jax for fish"]
    for first, seconds in _first_words().items():
        about = COMMANDS[first].about if first in COMMANDS else ", ".join(seconds)
        lines.append(_fish_line("__fish_use_subcommand", f"-f -a {first}", about))
        for second in seconds:
            whole = COMMANDS.get(f"{first} {second}")
            has = f"__fish_seen_subcommand_from {first}; and not __fish_seen_subcommand_from "
            lines.append(
                _fish_line(has + " ".join(seconds), f"-f -a {second}", whole.about if whole else "")
            )
    for name, parser in parsers().items():
        seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in name.split())
        for action in parser._actions:
            words = " ".join(words_for(action))
            if not action.option_strings and words:
                lines.append(_fish_line(seen, f"-a '{words}'", ""))
        for option in options_of(parser):
            words = " ".join(words_for(option))
            value = (f"-r -f -a '{words}'" if words else "-r") if takes_value(option) else ""
            long = next(text for text in option.option_strings if text.startswith("--"))
            lines.append(_fish_line(seen, f"-l {long[2:]} {value}".strip(), option.help or ""))
    return "\n".join(lines) + "\n"


def _fish_line(condition: str, what: str, about: str) -> str:
    text = about.replace("%%", "%").replace("\\", "\\\\").replace("'", "\\'")
    described = f" -d '{text}'" if text else ""
    return f"complete -c blis-jax -n '{condition}' {what}{described}"


SCRIPTS = {
    "bash": lambda: _BASH.format(table=_table()),
    "zsh": lambda: _ZSH.format(table=_table()),
    "fish": _fish,
}


class CompletionOptions(
    CommandOptions, command=NAME, description=_COMPLETION, examples=_EXAMPLES
):  # fmt: skip
    """Options of the command."""

    shell: str | None = word("SHELL", "bash, zsh or fish", OneOf(*SCRIPTS))


@CompletionOptions.as_main
def completion(options: CompletionOptions) -> int:
    """Run the command; return its exit code."""
    if options.shell is None:
        raise ConfigError(f"no shell is given; use one of {', '.join(SCRIPTS)}")
    print(SCRIPTS[options.shell](), end="")
    return 0


# --- the page of all options ----------------------------------------------------------------------


_PAGE = """\
Print every option of every command as Markdown: first those that mean the same everywhere, with their
other spellings, then those of each command.
"""
_HEAD = """\
# Options

This page is made by `blis-jax options > docs/options.md`, from what the commands declare; a test keeps it true.

## Options that mean the same in every command

Another spelling, an older one or that of vLLM, is understood wherever the option is. Settings of vLLM's engine have
its names too, such as `--max-num-seqs` and `--tensor-parallel-size` ([Settings](reference/settings.md)).
`blis-jax run` keeps BLIS's own names, `--workload-spec`, `--results-path` and `--seed`; it understands `--workload`
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


class PageOptions(CommandOptions, command=NAME, description=_PAGE):
    """Options of the command: none."""


@PageOptions.as_main
def options_page(options: PageOptions) -> int:
    """Run the command; return its exit code."""
    print(page(), end="")
    return 0


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
    every = {name: list(_rows_of(parser)) for name, parser in made.items()}
    first, of_first = next(iter(every.items()))
    for name, rows in every.items():
        alike = set(rows) & set(of_first) if name != first else set()
        said = ""
        if len(alike) > len(of_first) / 2:
            lacking = ", ".join(row[0] for row in of_first if row not in alike)
            said = f"All options of `blis-jax {first}` but {lacking}; and these:\n\n"
            rows = [row for row in rows if row not in alike]
        table = table_text(("option", "value", "meaning"), rows)
        text += f"\n### `blis-jax {name}`\n\n{_FOLDED.format(name=name, rows=said + table)}"
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
                f"`{first_spelling(option)}`",
                *(cell.replace("|", "\\|") for cell in (value, text)),
            )

"""`blis-jax completion SHELL`: completion of commands, options and names, from the commands' declarations."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from blis_jax.commands import cli
from blis_jax.commands.door.catalogue import (
    COMMANDS,
    actions_of,
    options_of,
    parsers,
    takes_value,
    words_for,
)
from blis_jax.commands.parser import Parser
from blis_jax.errors import ConfigError

NAME = "blis_jax.commands.door.completion"
_DESCRIPTION = """\
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return cli.run_command(NAME, _completion, arguments)


def _completion(arguments: Sequence[str] | None) -> int:
    parser = Parser(prog=f"python -m {NAME}", description=_DESCRIPTION, epilog=_EXAMPLES)
    shells = cli.one_of(*SCRIPTS)
    parser.add_argument(
        "shell", type=shells, metavar="SHELL", nargs="?", default=None, help="bash, zsh or fish"
    )
    shell = parser.given(sys.argv[1:] if arguments is None else arguments).get("shell")
    if shell is None:
        raise ConfigError(f"no shell is given; use one of {', '.join(SCRIPTS)}")
    print(SCRIPTS[shell](), end="")
    return 0


def _first_words() -> dict[str, tuple[str, ...]]:
    """What may be the first word, with the second words that it needs, if any."""
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
    """What sets `list` from first, second and previous word: the same text for bash and zsh."""
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
    """Cases for what follows an option that takes a value: its words, or any file."""
    patterns: dict[str, list[str]] = {}
    for option in filter(takes_value, options_of(parser)):
        words = " ".join(words_for(option))
        patterns.setdefault(words, []).extend(f'"{name} {text}"' for text in option.option_strings)
    for words, texts in patterns.items():
        yield f'{"|".join(texts)}) list="{words}" ;;'


def _words(name: str, parser: Parser) -> list[str]:
    """The words that may stand in a command's positions, then its options."""
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

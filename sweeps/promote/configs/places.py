"""Where a strategy sets a setting, for sentences about it."""

from __future__ import annotations

import re
from importlib import resources

from sweeps.promote.promotion import NotMappedError, Promotion
from sweeps.strategies.file import FOLDER, Strategy
from sweeps.strategies.space import space_of


def place_of(promotion: Promotion, setting: str) -> str:
    """File and line of a parameter or setting; the command line if the file has it not."""
    strategy = promotion.arm.strategy
    if strategy is None:
        return f"strategy {promotion.given}"
    text = _text(strategy)
    names = [one.name for one in space_of(strategy).dimensions if one.target == setting]
    for word in (setting, *names, setting.rpartition(".")[2]):
        found = re.search(rf"(?m)^.*\b{re.escape(word)}\b\s*[:,}}].*$", text)
        if found:
            return f"{strategy.source}, line {text[: found.start()].count(chr(10)) + 1}"
    return f"strategy {promotion.given}"


def not_mapped(promotion: Promotion, setting: str, problem: str, proposal: str) -> NotMappedError:
    """The sentence about a setting that the target cannot express."""
    place = place_of(promotion, setting)
    return NotMappedError(f"{setting} ({place}): {problem}; proposal: {proposal}")


def _text(strategy: Strategy) -> str:
    if strategy.folder is not None:
        return (strategy.folder / strategy.source).read_text(encoding="utf-8")
    file = resources.files("sweeps") / FOLDER / strategy.source
    return file.read_text(encoding="utf-8") if file.is_file() else ""

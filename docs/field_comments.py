"""Lists the fields of a dataclass on the page, each with the comment above or behind it in the source."""

from __future__ import annotations

import re
from typing import Any

import griffe

COMMENT = re.compile(r"\s#\s+(.*)$")
OWN_SECTIONS = re.compile(r"^(Attributes|Raises):", re.MULTILINE)


class FieldComments(griffe.Extension):
    """Gives a class whose docstring is plain words a list of the fields that have a comment."""

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Runs once the class is read whole."""
        if cls.docstring is None or OWN_SECTIONS.search(cls.docstring.value):
            return
        fields = {
            name: field for name, field in cls.attributes.items() if "property" not in field.labels
        }
        said = {name: words for name, field in fields.items() if (words := _comment(cls, field))}
        if said:
            lines = [f"    {name}: {words}" for name, words in said.items()]
            cls.docstring.value += "\n\nAttributes:\n" + "\n".join(lines)


def _comment(cls: griffe.Class, field: griffe.Attribute) -> str:
    source = cls.module.lines_collection[cls.module.filepath]
    first = (field.lineno or 1) - 1
    while first and "".join(source[first - 1 : first]).lstrip().startswith("# "):
        first -= 1
    lines = source[first : field.endlineno]
    return " ".join(found[1] for line in lines if (found := COMMENT.search(line)))

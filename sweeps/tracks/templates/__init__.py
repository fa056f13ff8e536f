"""Templates of the documents that are rendered from data."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jinja2


def render(name: str, **values: object) -> str:
    """Render a template of the tracks; a value that is missing is an error."""
    return rendered("sweeps.tracks", name, {"signed": signed, "plain": plain}, values)


def rendered(
    package: str, name: str, filters: Mapping[str, Callable[..., str]], values: Mapping[str, object]
) -> str:
    """Render a template in the folder `templates` of a package; `cell` is among its filters."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(package, "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown, not HTML
    )
    environment.filters |= {"cell": cell, **filters}
    return environment.get_template(name).render(**values)


def cell(text: str) -> str:
    """Write a text on one line, such that it does not end a table's cell."""
    return " ".join(str(text).split()).replace("|", "\\|")


def signed(value: float | None, decimals: int = 1) -> str:
    """Write a number with its sign, as `−66.5`; a dash for None."""
    if value is None:
        return "–"
    text = f"{abs(value):.{decimals}f}"
    is_zero = float(text) == 0
    return text if is_zero else f"{'−' if value < 0 else '+'}{text}"


def plain(value: float | None, decimals: int = 1) -> str:
    """Write a number with separated thousands; a dash for None."""
    if value is None:
        return "–"
    return f"{value:,.{decimals}f}".replace("-", "−")

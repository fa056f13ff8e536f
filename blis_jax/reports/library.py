"""The drawing library of the page: Vega-Lite, inlined from the optional package that carries it."""

from __future__ import annotations

import importlib.util

from blis_jax.errors import ConfigError

PACKAGE = "vl_convert"
LICENCE = (
    "Vega, Vega-Lite and Vega-Embed: BSD-3-Clause, Copyright University of Washington Interactive "
    "Data Lab and contributors"
)


def check_installed(option: str) -> None:
    """Refuses, before anything is computed, a report that could not be drawn."""
    if importlib.util.find_spec(PACKAGE) is None:
        raise ConfigError(
            f"{option}: the report draws with Vega-Lite, which needs the optional group: "
            "pip install 'blis-jax[report]'"
        )


def javascript() -> str:
    """Vega, Vega-Lite and Vega-Embed in one script, which sets `vegaEmbed`; made without a network."""
    import vl_convert

    script: str = vl_convert.javascript_bundle()  # type: ignore[call-arg]  # optional, but not in its stub
    return script.replace("</script", "<\\/script")  # which would end the page's script element


def library_versions() -> dict[str, str]:
    """What the page draws with."""
    import vl_convert

    return {
        "vega": vl_convert.get_vega_version(),
        "vega-lite": vl_convert.get_vegalite_versions()[-1],
        "vega-embed": vl_convert.get_vega_embed_version(),
    }

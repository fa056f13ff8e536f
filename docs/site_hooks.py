"""What the build of the site adds: pictures of `papers/`, wide pages, and a check that nothing is fetched."""

import logging
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
PICTURES = ROOT / "papers"  # RECORD/pictures/NAME.png there is figures/RECORD/NAME.png here
# What a browser fetches by itself; links that a reader may follow are not meant.
FETCHED = re.compile(
    r"""<(?:script|img|iframe|source|link)\b[^>]*\b(?:src|href)=["']?((?:https?:)?//[^"'> ]+)"""
)
LOG = logging.getLogger("mkdocs.hooks.site")


def on_config(config: Any) -> Any:
    """Add the pages to the navigation that may be there or not."""
    for section in config.nav:
        for title, pages in section.items():
            for page, name in config.extra["optional_pages"].get(title, {}).items():
                if Path(config.docs_dir, page).exists():
                    pages.append({name: page})
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pictures under `figures/`."""
    for picture in sorted(PICTURES.glob("*/pictures/*.png")):
        uri = f"figures/{picture.parents[1].name}/{picture.name}"
        files.append(File.generated(config, uri, abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    """Give pages with wide tables the room of the table of contents."""
    if page.file.src_uri in config.extra["wide_pages"]:
        page.meta["hide"] = ["toc"]
    return markdown


def on_post_build(config: Any) -> None:
    """Warn of everything that a page would fetch from a network; warnings end the build."""
    for page in sorted(Path(config.site_dir).rglob("*.html")):
        for address in FETCHED.findall(page.read_text(encoding="utf-8")):
            LOG.warning("%s fetches %s; put the file into docs/", page.name, address)

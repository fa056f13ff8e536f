"""What the build of the site adds: pictures of `papers/`, links to the glossary, wide pages.

It also warns of long pages, and of what a page would fetch from a network.
"""

import logging
import os
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
# How much a page counts in the search, by folder: what people look for stands before what was found and why.
BOOSTS = {"tutorials": 4, "how-to": 4, "concepts": 4, "results": 0.5, "decisions": 0.5}
# What people type who look for a page; `tests/test_site_search.py` asks the site's own search.
FOUND_BY = {
    "concepts/cluster.md": [
        "TTFT", "TPOT", "ITL", "goodput", "SLO", "glossary", "queue depth", "token budget", "time per output token",
    ],
    "concepts/experiments.md": ["random seeds", "paired runs"],
    "concepts/kv-memory.md": ["prefix caching", "enable_prefix_caching", "KV cache", "offload", "preemption"],
    "concepts/signals.md": ["stale metrics", "stale load", "scrape interval"],
    "how-to/calibration.md": ["vllm bench serve", "GuideLLM", "AIPerf", "SGLang", "measured server", "how accurate"],
    "how-to/capacity.md": ["how many GPUs", "how many instances", "sizing", "autosize", "cheapest cluster", "cost"],
    "how-to/compare-properly.md": ["confidence interval", "significance", "p value"],
    "how-to/curve.md": ["saturation", "throughput against latency", "Pareto", "cost per token"],
    "how-to/derivatives.md": ["gradient"],
    "how-to/elastic.md": ["autoscaling", "autoscaler", "scale up"],
    "how-to/first-questions.md": [
        "P/D", "xPyD", "disaggregation", "disaggregated", "aggregated", "prefill decode", "which router", "batch size",
        "load balancing",
    ],
    "how-to/flow-control.md": ["rate limit", "backpressure", "gateway queue"],
    "how-to/outages.md": ["node failure", "crash"],
    "how-to/policies.md": ["own policy", "admission", "scheduler", "scorer", "priority"],
    "how-to/promote.md": ["llm-d", "endpoint picker", "EPP", "Kubernetes"],
    "how-to/search.md": ["Bayesian optimization", "tuning", "tune"],
    "how-to/sensitivity.md": ["sensitivity", "Sobol"],
    "how-to/trace-formats.md": ["Mooncake", "BurstGPT", "ShareGPT", "session_id", "replay", "multi-turn"],
    "how-to/workloads.md": ["burstiness", "Poisson", "multi-turn", "ShareGPT"],
    "reference/metrics.md": ["percentile", "P99"],
    "reference/python.md": ["xarray", "pandas", "notebook", "Jupyter", "export CSV"],
    "reference/settings.md": ["max_num_batched_tokens", "max_num_seqs", "tensor_parallel_size"],
    "results/gpu.md": ["GPU support", "CUDA"],
    "results/real-servers.md": ["how accurate", "accuracy", "validation"],
    "results/speed.md": ["slow", "how fast"],
    "tutorials/first-steps.md": ["install", "installation", "quick start"],
}  # fmt: skip

# Words that are explained where they are first used, by the place that explains them.
GLOSSARY = "concepts/cluster.md"
EXPLAINED = {
    **dict.fromkeys(["TTFT", "TPOT", "ITL", "E2E", "goodput"], "what-is-measured-of-a-request"),
    **dict.fromkeys(["token budget", "queue depth", "effective load"], "words"),
    **dict.fromkeys(["SLO class", "prefill", "decode", "preempted"], "the-way-of-a-request"),
}
NO_PROSE = re.compile(
    r"^```.*?^```$|^(?:#|\||<| {4})[^\n]*$|`[^`\n]*`|!?\[[^\]]*\](?:\([^)]*\)|\[[^\]]*\])?|<[^>\n]+>",
    re.M | re.S,
)


def with_glossary(markdown: str, page: str) -> str:
    """Link the first use in prose of each word that the glossary explains."""
    if page == GLOSSARY:
        return markdown
    place = os.path.relpath(GLOSSARY, os.path.dirname(page) or ".")
    left = dict(EXPLAINED)

    def linked(prose: str) -> str:
        if not left:
            return prose
        words = re.compile(rf"(?<![\w/-])({'|'.join(left)})(?![\w/-])")
        return words.sub(once, prose)

    def once(found: re.Match[str]) -> str:
        anchor = left.pop(found[1], None)
        return found[1] if anchor is None else f"[{found[1]}]({place}#{anchor})"

    parts, end = [], 0
    for other in NO_PROSE.finditer(markdown):
        parts += [linked(markdown[end : other.start()]), other[0]]
        end = other.end()
    return "".join([*parts, linked(markdown[end:])])


MOST_ROWS = 6  # of a table of results that stands open
NO_FOLDS = ("results/index.md", "results/house.md")  # their tables are what they say
TABLE = re.compile(r"^\|(.*)\|\n\|[-| :]+\|\n((?:\|.*(?:\n|$))+)", re.M)


def with_folds(markdown: str) -> str:
    """Fold the long tables; what a fold has is said in its line."""

    def folded(table: re.Match[str]) -> str:
        rows = table[2].count("\n|") + 1
        if rows <= MOST_ROWS:
            return table[0]
        heads = ", ".join(filter(None, map(str.strip, re.split(r"(?<!\\)\|", table[1]))))
        line = f"<summary markdown>{rows} rows: {heads}</summary>"
        return f"<details markdown>\n{line}\n\n{table[0].rstrip()}\n\n</details>\n"

    return TABLE.sub(folded, markdown)


MOST_WORDS = 1500  # of prose on a page, as a reader sees it
NO_LIMIT = (
    "reference/",
    "results/ledger.md",
)  # generated: names with their docstrings, rows with their records
NOT_COUNTED = re.compile(r"<(table|pre|details)\b.*?</\1>|<[^>]+>", re.S)  # read where needed


def num_words(html: str) -> int:
    """Return how many words of prose a page has: those outside tables, code and folds."""
    return len(NOT_COUNTED.sub(" ", html).split())


def on_page_content(html: str, page: Page, config: Any, files: Files) -> str:
    """Warn of a page that is too long to be read."""
    uri, words = page.file.src_uri, num_words(html)
    if words > MOST_WORDS and not uri.startswith(NO_LIMIT):
        LOG.warning(
            "%s has %d words, at most %d are read; split or shorten it", uri, words, MOST_WORDS
        )
    return html


def on_files(files: Files, config: Any) -> Files:
    """Add the pictures under `figures/`."""
    for picture in sorted(PICTURES.glob("*/pictures/*.png")):
        uri = f"figures/{picture.parents[1].name}/{picture.name}"
        files.append(File.generated(config, uri, abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    """Give wide pages the room of the table of contents, each page its weight in the search and links to words.

    Long tables of results are folded.
    """
    folder = page.file.src_uri.partition("/")[0]
    page.meta["search"] = {"boost": BOOSTS.get(folder, 1)}
    page.meta["tags"] = FOUND_BY.get(page.file.src_uri, [])
    if page.file.src_uri in config.extra["wide_pages"]:
        page.meta["hide"] = ["toc"]
    if folder == "results" and page.file.src_uri not in NO_FOLDS:
        markdown = with_folds(markdown)
    return with_glossary(markdown, page.file.src_uri)


def on_post_build(config: Any) -> None:
    """Warn of everything that a page would fetch from a network; warnings end the build."""
    for page in sorted(Path(config.site_dir).rglob("*.html")):
        for address in FETCHED.findall(page.read_text(encoding="utf-8")):
            LOG.warning("%s fetches %s; put the file into docs/", page.name, address)

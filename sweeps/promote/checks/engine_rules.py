"""Rules of vLLM's flags, and of the request priority that is negated once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from sweeps.promote.checks.documents import Document, Documents
from sweeps.promote.maps.classes import CLASS_PRIORITY
from sweeps.promote.promotion import Finding

UNLIMITED = 0


def engine_findings(documents: Documents) -> Iterator[Finding]:
    """Findings about flags and request priorities."""
    for document in documents.of("vllm-flags"):
        if isinstance(document.content, dict):
            yield from _flags(document, document.content)
    for document in documents.of("engine-priority"):
        if isinstance(document.content, dict):
            yield from _priorities(document, document.content)


def _flags(document: Document, flags: dict[str, Any]) -> Iterator[Finding]:
    def whole(name: str) -> int | None:
        value = flags.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    tokens, sequences = whole("max-num-batched-tokens"), whole("max-num-seqs")
    if tokens is not None and sequences is not None and tokens < sequences:
        message = (
            f"max-num-batched-tokens is {tokens} and max-num-seqs {sequences}; vLLM wants at least as many tokens "
            "as sequences"
        )
        yield Finding("CRITICAL", "batched-tokens-below-sequences", document.path, message)
    length, is_chunked = whole("max-model-len"), flags.get("enable-chunked-prefill", True)
    if is_chunked is False:
        if tokens is not None and (length is None or tokens < length):
            message = (
                f"no-enable-chunked-prefill with max-num-batched-tokens {tokens} and max-model-len "
                f"{length or 'not written'}; vLLM refuses to start unless the tokens reach the length"
            )
            yield Finding("CRITICAL", "chunked-prefill-model-length", document.path, message)
        if (whole("long-prefill-token-threshold") or 0) > 0:
            message = "long-prefill-token-threshold cuts prompts only with chunked prefill on; leave one out"
            yield Finding("CRITICAL", "chunked-prefill-off", document.path, message)
    if ("kv-offloading-size" in flags) != ("kv-offloading-backend" in flags):
        message = "kv-offloading-size and kv-offloading-backend belong together; give both or none"
        yield Finding("CRITICAL", "offload-half", document.path, message)


LEAST_URGENT = tuple(name for name, priority in CLASS_PRIORITY.items() if priority < 0)


def _priorities(document: Document, content: dict[str, Any]) -> Iterator[Finding]:
    classes = content.get("classes")
    known = classes if isinstance(classes, dict) else {}
    # a policy may put sheddable, batch and background in any order among themselves
    pairs = itertools.product(("critical", "standard"), ("standard", *LEAST_URGENT))
    for above, below in pairs:
        if not (isinstance(known.get(above), dict) and isinstance(known.get(below), dict)):
            continue
        first, second = (known[name].get("offset_ms") for name in (above, below))
        if isinstance(first, int) and isinstance(second, int) and first < second:
            message = (
                f"{above} has offset {first} ms and {below} {second} ms; the key is arrival minus offset and lower "
                "is earlier in vLLM, so the sign was changed more than once"
            )
            yield Finding("CRITICAL", "priority-negated-once", document.path, message)

"""Verdicts of other reviewers: files bound to the hashes of what was reviewed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from blis_jax.errors import ConfigError, closest
from blis_jax.files.atomic_write import replacing
from blis_jax.files.input_files import read_text
from blis_jax.files.strict_yaml import read_mapping, sentence
from sweeps.review.candidates import Candidate
from sweeps.review.opinion import Opinion

Text = Annotated[str, Field(min_length=1)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ExternalVerdict(_Part):
    """One candidate's verdict; null until the reviewer has filled it in."""

    candidate: Text
    hash: Text
    verdict: Literal["pass", "concern", "reject"] | None = None
    reasons: tuple[Text, ...] = ()


class ExternalReview(_Part):
    """A reviewer's file."""

    judge: str
    verdicts: Annotated[tuple[ExternalVerdict, ...], Field(min_length=1)]


def read_reviews(
    paths: Sequence[Path], candidates: Sequence[Candidate], taken: Sequence[str]
) -> list[Opinion]:
    """The opinions in several files; refuses any that is not about exactly these candidates.

    `taken` are names of judges that exist already.
    """
    opinions: list[Opinion] = []
    names = list(taken)
    for path in paths:
        review = _read(path)
        if review.judge in names:
            raise ConfigError(
                f"{path}: judge: {review.judge!r} is another judge's name; give it its own"
            )
        names.append(review.judge)
        opinions += [_opinion(path, review, verdict, candidates) for verdict in review.verdicts]
        judged = [verdict.candidate for verdict in review.verdicts]
        for candidate in candidates:
            if judged.count(candidate.name) != 1:
                how = "has no verdict" if candidate.name not in judged else "has two verdicts"
                raise ConfigError(f"{path}: candidate {candidate.name!r} {how}; give it one")
    return opinions


def _read(path: Path) -> ExternalReview:
    data = read_mapping(read_text(path, "another reviewer's verdicts"), str(path))
    try:
        review = ExternalReview.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{path}: {sentence(error)}") from None
    if not review.judge.strip():
        raise ConfigError(f"{path}: judge: is empty; write who judges")
    return review


def _opinion(
    path: Path, review: ExternalReview, verdict: ExternalVerdict, candidates: Sequence[Candidate]
) -> Opinion:
    by_name = {candidate.name: candidate for candidate in candidates}
    if verdict.candidate not in by_name:
        raise ConfigError(
            f"{path}: candidate {verdict.candidate!r} is not under review; there are "
            f"{', '.join(by_name)}{closest(verdict.candidate, by_name)}"
        )
    found = by_name[verdict.candidate].hash
    if verdict.hash != found:
        raise ConfigError(
            f"{path}: the verdict on {verdict.candidate!r} is about another version: it has hash "
            f"{_short(verdict.hash)}, the candidate under review has {_short(found)}; have it reviewed "
            "again"
        )
    if verdict.verdict is None:
        raise ConfigError(
            f"{path}: the verdict on {verdict.candidate!r} is not filled in; write pass, concern or reject"
        )
    if verdict.verdict != "pass" and not verdict.reasons:
        raise ConfigError(
            f"{path}: the verdict on {verdict.candidate!r} is {verdict.verdict} without a reason; give one"
        )
    return Opinion(
        review.judge,
        verdict.candidate,
        verdict.verdict,
        verdict.reasons,
        probe=f"imported from {path.name}",
        is_reproducible=False,
    )


def _short(text: str) -> str:
    return text if len(text) <= 24 else text[:21] + "..."


def write_template(path: Path, candidates: Sequence[Candidate]) -> None:
    """An empty file for another reviewer, with the right hashes."""
    document: dict[str, Any] = {
        "judge": "",
        "verdicts": [
            {"candidate": one.name, "hash": one.hash, "verdict": None, "reasons": []}
            for one in candidates
        ],
    }
    head = "# judge: who judges. verdict: pass, concern or reject, the last two with reasons.\n"
    with replacing(path) as written:
        text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=1000)
        written.write_text(head + text, encoding="utf-8")

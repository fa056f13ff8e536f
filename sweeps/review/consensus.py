"""Consensus: from opinions, imported ones included, to an outcome for each candidate and a choice, bound to hashes."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError

from blis_jax.commands.options.seed_options import seeds_text
from blis_jax.errors import ConfigError, closest
from blis_jax.files.atomic_write import replacing
from blis_jax.files.input_files import read_json, read_text
from blis_jax.files.strict_yaml import read_mapping, sentence
from sweeps.claims.words import ACCEPTED, CONCERN, OPINIONS, REJECT, REJECTED
from sweeps.review.candidates import Candidate, Opinion, candidates_of
from sweeps.strategies.parts import ClosedPart, Text


class ExternalVerdict(ClosedPart):
    """One candidate's verdict; null until the reviewer has filled it in."""

    candidate: Text
    hash: Text
    verdict: Literal["pass", "concern", "reject"] | None = None
    reasons: tuple[Text, ...] = ()


class ExternalReview(ClosedPart):
    """The file of an external reviewer."""

    judge: str
    verdicts: Annotated[tuple[ExternalVerdict, ...], Field(min_length=1)]


def read_reviews(
    paths: Sequence[Path], candidates: Sequence[Candidate], judges: Sequence[str]
) -> list[Opinion]:
    """Read the opinions in several files; refuse any that is not about exactly these candidates.

    `judges` has the names of judges that are in use already.
    """
    opinions: list[Opinion] = []
    names = list(judges)
    for path in paths:
        review = _read_review(path)
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


def _read_review(path: Path) -> ExternalReview:
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
    hash_of_candidate = by_name[verdict.candidate].hash
    if verdict.hash != hash_of_candidate:
        raise ConfigError(
            f"{path}: the verdict on {verdict.candidate!r} is about another version: it has hash "
            f"{_short(verdict.hash)}, the candidate under review has {_short(hash_of_candidate)}; have it reviewed "
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
    """Write an empty file for an external reviewer, with the candidates' hashes."""
    document: dict[str, Any] = {
        "judge": "",
        "verdicts": [
            {"candidate": candidate.name, "hash": candidate.hash, "verdict": None, "reasons": []}
            for candidate in candidates
        ],
    }
    head = "# judge: who judges. verdict: pass, concern or reject, the last two with reasons.\n"
    with replacing(path) as written:
        text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=1000)
        written.write_text(head + text, encoding="utf-8")


VERSION = 1
RULE = (
    "A candidate is rejected if a judge whose probe can be repeated rejects it, or if more than half of "
    "all judges reject it. Otherwise the candidate is accepted, and concerns are recorded. The accepted "
    "candidate with the fewest rejections is chosen; of equals the one with the fewest concerns, then the "
    "one with the lowest score by the first candidate's objectives, then the one given first."
)


def to_record(
    candidates: Sequence[Candidate],
    opinions: Sequence[Opinion],
    seeds: Mapping[str, Sequence[int]],
    stream: str,
    num_requests: int | None = None,
    scores: Mapping[str, float | None] | None = None,
) -> dict[str, Any]:
    """Return the review as a document: candidates with hashes, opinions, consensus."""
    listed = [
        {
            "judge": opinion.judge,
            "candidate": opinion.candidate,
            "verdict": opinion.verdict,
            "reasons": list(opinion.reasons),
            "is_reproducible": opinion.is_reproducible,
            "probe": opinion.probe,
            "repeat": _command(candidates, opinion, seeds, stream, num_requests),
            "evidence": opinion.evidence,
        }
        for opinion in opinions
    ]
    named: list[dict[str, Any]] = [
        {
            "name": candidate.name,
            "given": candidate.text,
            "hash": candidate.hash,
            "seeds": list(seeds.get(candidate.name, candidate.seeds)),
            "score": (scores or {}).get(candidate.name),
            "deviations": list(candidate.strategy.deviations)
            if candidate.strategy is not None
            else [],
        }
        for candidate in candidates
    ]
    return {
        "review": VERSION,
        "candidates": named,
        "rng": stream,
        "num_requests": num_requests,
        "opinions": listed,
        "consensus": consensus({opinion["name"]: opinion["score"] for opinion in named}, listed),
    }


def _command(
    candidates: Sequence[Candidate],
    opinion: Opinion,
    seeds: Mapping[str, Sequence[int]],
    stream: str,
    num_requests: int | None,
) -> str:
    """Return the command line that reproduces an opinion; empty for imported opinions."""
    if not opinion.is_reproducible:
        return ""
    words = [candidate.text for candidate in candidates]
    words += ["--judges", opinion.judge, "--rng", stream]
    words += ["--seeds", seeds_text(seeds[opinion.candidate])]
    words += ["--num-requests", str(num_requests)] if num_requests is not None else []
    return f"blis-jax review {shlex.join(words)}"


def consensus(
    scores: Mapping[str, float | None], opinions: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the rule, each candidate's outcome with dissent, and the chosen candidate (None if all are rejected).

    `scores` holds all candidates in their order.
    """
    outcomes: dict[str, dict[str, Any]] = {}
    for name in scores:
        on = [opinion for opinion in opinions if opinion["candidate"] == name]
        counts = {verdict: sum(o["verdict"] == verdict for o in on) for verdict in OPINIONS}
        is_repeatable = any(o["verdict"] == REJECT and o["is_reproducible"] for o in on)
        is_rejected = is_repeatable or 2 * counts[REJECT] > len(on)
        dissent = [o["judge"] for o in on if (o["verdict"] == REJECT) != is_rejected]
        outcomes[name] = {
            "outcome": REJECTED if is_rejected else ACCEPTED,
            "counts": counts,
            "rejected_by": [o["judge"] for o in on if o["verdict"] == REJECT],
            "concerns_of": [o["judge"] for o in on if o["verdict"] == CONCERN],
            "dissent": dissent,
        }

    def standing(name: str) -> tuple[float, ...]:
        counts, score = outcomes[name]["counts"], scores[name]
        return counts[REJECT], counts[CONCERN], math.inf if score is None else score

    accepted = [name for name in scores if outcomes[name]["outcome"] == ACCEPTED]
    chosen = min(accepted, key=standing, default=None)
    return {"rule": RULE, "outcomes": outcomes, "chosen": chosen}


def check_record(path: Path) -> list[str]:
    """Verify a record against its candidates and return lines that say what was verified.

    Raises:
        ConfigError: a candidate is no longer what was reviewed, or the consensus does not
            follow from the opinions.
    """
    record = _read(path)
    candidates = candidates_of(
        [str(entry["given"]) for entry in record["candidates"]], record.get("num_requests")
    )
    for candidate, entry in zip(candidates, record["candidates"], strict=True):
        if candidate.hash != entry["hash"]:
            raise ConfigError(
                f"{path}: candidate {entry['name']!r} is no longer what was reviewed: it had hash "
                f"{entry['hash'][:21]}..., it has {candidate.hash[:21]}...; review it again"
            )
    scores = {entry["name"]: entry["score"] for entry in record["candidates"]}
    again = consensus(scores, record["opinions"])
    if again != {
        **record["consensus"],
        "rule": RULE,
    }:  # earlier versions put the same rule otherwise
        raise ConfigError(
            f"{path}: the consensus does not follow from the opinions by the rule; review again"
        )
    chosen = again["chosen"] or "none, all were rejected"
    return [
        f"{len(candidates)} candidates are as they were reviewed, and the consensus follows from "
        f"{len(record['opinions'])} opinions.",
        f"Chosen: {chosen}.",
    ]


def _read(path: Path) -> dict[str, Any]:
    record = read_json(path, "a recorded review")
    keys = ("candidates", "opinions", "consensus")
    if not isinstance(record, dict) or record.get("review") != VERSION:
        raise ConfigError(f"{path} is not a recorded review; give one of blis-jax review")
    if any(key not in record for key in keys):
        raise ConfigError(f"{path} is not a whole review; give one of blis-jax review")
    return record

"""Stage 6: findings of every hypothesis, the promotion report, feedback to simulator and search."""

from __future__ import annotations

from sweeps.promote.documents.content import PromotionContent, Verdict
from sweeps.promote.documents.feedback import feedback_files
from sweeps.promote.documents.findings import findings_files
from sweeps.promote.documents.render import NOT_MEASURED, percent, render
from sweeps.promote.promotion import Files, Promotion

REPORT = "documents/promotion-report.md"
_BULKY = "evidence/reports/"


def document_files(promotion: Promotion, files: Files) -> dict[str, str]:
    """All documents, by path."""
    content = PromotionContent(promotion, files)
    return {**findings_files(content), **feedback_files(content), REPORT: _report(content)}


def _report(content: PromotionContent) -> str:
    def change(verdict: Verdict, name: str) -> str:
        found = verdict["changes"].get(name)
        return percent(found["percent"]) if found else NOT_MEASURED

    paths = sorted(path for path in content.files if not path.startswith(_BULKY))
    return render(
        "report.md.j2",
        promotion=content.promotion,
        document=content.document,
        counts=content.counts(),
        survival=content.survival,
        gates=content.gates(),
        paths=paths,
        change=change,
    )

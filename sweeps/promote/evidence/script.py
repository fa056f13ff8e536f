"""The evaluation script of a promotion: what to type when the reports of a cluster are there."""

from __future__ import annotations

import shlex

from sweeps.promote.evidence.hypothesis import ARMS
from sweeps.promote.promotion import Files, Promotion

PATH = "tests/evaluate.sh"
_TEXT = """\
#!/bin/sh
# Judges every hypothesis of this promotion by benchmark reports of a cluster.
#
#   tests/evaluate.sh REPORTS
#
# REPORTS holds SCENE/ARM/RUN/*.yaml, reports of llm-d-benchmark (v0.1 to v0.2.1) and results.json of priority-mix.
# SCENE is the scene of a hypothesis in hypotheses.yaml, ARM one of {arms}; runs of all arms with
# one name are pairs: the same workload, the same seed. Three runs per arm are the least.
set -eu
if [ "$#" -ne 1 ]; then
    echo "usage: $0 REPORTS" >&2
    exit 2
fi
here=$(cd "$(dirname "$0")/.." && pwd)
exec python -m sweeps.promote validate {strategy} --output "$here" --reports "$1"
"""


def script_files(promotion: Promotion) -> Files:
    """The script, by path."""
    text = _TEXT.format(arms=", ".join(ARMS), strategy=shlex.quote(promotion.given))
    return {PATH: text}

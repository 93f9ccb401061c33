# SPDX-License-Identifier: Apache-2.0
"""One table has all reasons: no sentence twice, none that nothing gives, and pages quote them as they are."""

import re
from pathlib import Path

from cfi2sframe.why import Reason

ROOT = Path(__file__).resolve().parents[1]


def test_each_reason_has_a_sentence_of_its_own() -> None:
    sentences = [reason.value for reason in Reason]
    assert len(Reason.__members__) == len(set(sentences))
    # Reports go on after it: "(rbx+8)", a full stop.
    assert [each for each in sentences if each != each.strip() or each.endswith((".", ":", ","))] == []


def test_each_reason_is_given_somewhere() -> None:
    given = set[str]()
    for path in (ROOT / "cfi2sframe").rglob("*.py"):
        given.update(re.findall(r"\bReason\.([A-Z_0-9]+)", path.read_text()))
    assert given == set(Reason.__members__)


def test_the_page_on_reports_quotes_the_reasons() -> None:
    page = (ROOT / "docs/reports.md").read_text()
    (remaining,) = re.findall(r"What remains, mostly:\n\n(.*?)\n\n", page, re.DOTALL)
    bold = re.findall(r"^- \*\*(.*?)\*\*", remaining, re.MULTILINE)
    assert bold
    assert set("; ".join(bold).split("; ")) <= {reason.value for reason in Reason}

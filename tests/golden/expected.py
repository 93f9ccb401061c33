# SPDX-License-Identifier: Apache-2.0
"""What the golden objects are expected to give, as text for review.

`python -m tests.golden.expected` rewrites all. Other tests ask for kinds, places and exit statuses only.
"""

from collections.abc import Iterator
from pathlib import Path

from cfi2sframe import load
from cfi2sframe.conversion.options import Options
from cfi2sframe.errors import RequestError
from cfi2sframe.report.coverage_report import missing_sentences
from cfi2sframe.sframe.dump import dump_text
from cfi2sframe.sframe.read import read_section
from tests.golden.messages import FOLDER, text_of_messages
from tests.support.conversion.sums import check_sums, convert_checked

MESSAGES = FOLDER / "messages.txt"


def objects() -> list[Path]:
    """Return the golden objects."""
    return sorted(FOLDER.glob("*.o"))


def expected_path(path: Path) -> Path:
    """Return the file beside an object that holds what is expected of it."""
    return path.with_suffix(".expected")


def lines_of(path: Path) -> Iterator[str]:
    """Yield what each version makes of an object: the bytes, their meaning, and what is left out."""
    image = load(path, path.name)
    for version in (1, 2, 3):
        yield f"# {path.name}, version {version}"
        try:
            conversion = convert_checked(image, Options(version))
        except RequestError as error:
            yield f"error: {error.detail}"
            continue
        coverage = check_sums(conversion)
        for kind in ("left out", "in part"):
            of_kind = coverage._replace(missing=tuple(coverage.of_kind(kind)))
            yield from (f"{kind}: {sentence}" for sentence in missing_sentences(of_kind))
        for position in range(0, len(conversion.data), 16):
            yield f"{position:04x}  {conversion.data[position : position + 16].hex(' ')}"
        if conversion.data:
            yield from (line.rstrip() for line in dump_text(read_section(conversion.data)))


def text_of(path: Path) -> str:
    """Return the whole text for an object."""
    return "\n".join(lines_of(path)).rstrip("\n") + "\n"


if __name__ == "__main__":
    for golden in objects():
        expected_path(golden).write_text(text_of(golden))
    MESSAGES.write_text(text_of_messages())

# SPDX-License-Identifier: Apache-2.0
"""Read stamps: they show that a file is up to date, with its counts and warnings, without a look at CFI or code.

Anybody can forge one. So it only keeps a file as it is, and satisfies no condition.
"""

from typing import Final

from cfi2sframe.elf.contents import digest_of
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.files.source import Source
from cfi2sframe.jobs.records import Conditions, Outcome, Request
from cfi2sframe.placing.stamp import stamp_of

#: Raise it with every change of rows, counts or warnings: stamps of other revisions do not count.
REVISION: Final = 3


def key_of(request: Request, image: ElfImage) -> bytes:
    """Return all that rows and warnings depend on beside the file: revision, options, reader, and debug file."""
    evidence = "not wanted" if request.debug_file is None else "none"
    if image.debug_file is not None:
        evidence = digest_of(image.debug_file.data).hex()
    return repr((REVISION, tuple(request.options), request.reader, evidence)).encode()


def up_to_date(request: Request, image: ElfImage, source: Source) -> Outcome | None:
    """Return the outcome for a file that its stamp shows to be up to date; None where the conversion has to tell.

    The stamp has no account, which a report of a tree does without, and `replaces` is for users who do not believe the
    file. Conditions are asked of the CFI, and a file without a section is not up to date, whatever its stamp says.
    """
    wants_account = request.wants_account and not source.may_be_unfit
    if request.replaces or request.is_raw or wants_account or request.conditions != Conditions():
        return None
    stamp = stamp_of(image.data, key_of(request, image)) if image.has_sframe else None
    if stamp is None:
        return None
    return Outcome(status="unchanged", **stamp._replace(warnings=_readable(stamp.warnings))._asdict())


def _readable(warnings: tuple[str, ...]) -> tuple[str, ...]:
    """Return warnings with the names of functions, which come first, in readable form."""
    names = [warning.partition(" ")[0] for warning in warnings]
    if not any(name.startswith(("_Z", "_R")) for name in names):
        return warnings
    from cfi2sframe.process.demangle import readable_names
    from cfi2sframe.text import printable

    readable = readable_names(names)
    return tuple(
        f"{printable(readable.get(name, name))}{warning.removeprefix(name)}"
        for name, warning in zip(names, warnings, strict=True)
    )

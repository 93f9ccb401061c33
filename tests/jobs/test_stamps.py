# SPDX-License-Identifier: Apache-2.0
"""A file that its stamp shows to be up to date: said at once, in the words of a comparison, and no more."""

import hashlib
import json
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from cfi2sframe import emit, load
from cfi2sframe.conversion.convert import convert_image
from cfi2sframe.conversion.options import Options
from cfi2sframe.elf.contents import Joined, LazyBytes
from cfi2sframe.errors import Cfi2SFrameError, ErrorKind
from cfi2sframe.files.source import Source
from cfi2sframe.jobs import conversion, stamps
from cfi2sframe.jobs.conversion import convert_anew
from cfi2sframe.jobs.records import Conditions, Outcome, Request
from cfi2sframe.jobs.stamps import REVISION, key_of, up_to_date
from cfi2sframe.placing import linked
from cfi2sframe.placing.stamp import Stamp, sealed, stamp_of
from cfi2sframe.report.coverage import account
from cfi2sframe.report.coverage_report import missing_sentences
from cfi2sframe.sframe.dump import dump_text
from cfi2sframe.sframe.read import read_section
from tests.support.cli import ROOT, run
from tests.support.jobs import OBJECT, convert_one, object_with_gap

#: The digest of `rows_of_the_repository` for each revision: a new one, with a new number, whenever rows change.
REVISIONS = {
    1: "ac5849a70dd21d08cd7326c2ea05de9d83ef4817d7c3378fa6531d3904a96fb2",
    2: "aa663dd9bbcc9606b82044a32c4831500c7c1ddebcde5d3aabeee23a909017f6",
    3: "43588ff9978f76afe5a92c2266e4d4763831fcd86928a439d741b25f36e75a40",
}
FILES = [*sorted((ROOT / "testdata/golden").glob("*.o")), *sorted((ROOT / "testdata/converted").glob("a*"))]
#: What the machine has, of several sizes; and of three ABIs, where `make corpus-files` was run.
MACHINE = [path for name in ("ls", "git", "gdb", "perl", "c++filt") if (path := Path("/usr/bin", name)).exists()]
CORPUS = [path for path in sorted((ROOT / "build/corpus").rglob("[!.]*")) if path.is_file() and not path.is_symlink()]
NAMED = Source("file", "file")
SETTINGS = {
    "default": Request(),
    "version 2": Request(Options(2)),
    "errata 0": Request(Options(2, errata=0)),
    "kernel": Request(reader="kernel"),
    "from code": Request(Options(source="code")),
}


def rows_of_the_repository() -> Iterator[str]:
    """Yield the rows of functions, and what is left out, for the files of the repository."""
    for path in FILES:
        image = load(path, path.name)
        for options in (Options(2, level=0), Options(3, level=0), Options(3, level=0, source="code")):
            try:
                made = convert_image(image, options)
            except Cfi2SFrameError as error:
                yield str(error)
                continue
            yield from missing_sentences(account(made))
            yield from dump_text(read_section(made.data)) if made.data else ()


def copied(source: Path, folder: Path) -> Path:
    path = folder / "file"
    shutil.copyfile(source, path)
    return path


def said(path: Path, asked: Request) -> tuple[Outcome | None, Outcome]:
    """Return what the stamp says of a file, and what a comparison does."""
    image = load(path)
    return up_to_date(asked, image, NAMED), convert_anew(asked, image, NAMED, lambda _: None).outcome


def priced(path: Path) -> Path | ParameterSet:
    """Files of many megabytes are for the second tier."""
    return pytest.param(path, marks=pytest.mark.slow) if path.stat().st_size > 8 << 20 else path


def never(*_: object) -> None:
    pytest.fail("the file was converted")


@pytest.fixture
def stamped(tmp_path: Path) -> Path:
    """An object that was converted."""
    path = tmp_path / "file.o"
    path.write_bytes(OBJECT)
    assert convert_one(path).status == "converted"
    return path


def test_a_change_of_rows_raises_the_revision() -> None:
    digest = hashlib.sha256("\n".join(rows_of_the_repository()).encode()).hexdigest()
    assert (max(REVISIONS), len(set(REVISIONS.values()))) == (REVISION, len(REVISIONS))
    assert digest == REVISIONS[REVISION], "raise REVISION in jobs/stamps.py, and add its digest here"


@pytest.mark.parametrize("asked", SETTINGS.values(), ids=SETTINGS.keys())
@pytest.mark.parametrize("source", [*FILES, *map(priced, [*MACHINE, *CORPUS[::60]])], ids=lambda path: path.name)
def test_a_stamp_says_what_a_comparison_says(source: Path, asked: Request, tmp_path: Path) -> None:
    path = copied(source, tmp_path)
    done = convert_one(path, asked)
    if done.status != "converted":
        # Files of testdata/converted have the section already; the kernel reads no objects.
        assert done.status == "unchanged" or done.kind is ErrorKind.UNFIT, done
        return
    if not load(path).sections:
        assert up_to_date(asked, load(path), NAMED) is None
        return
    quick, slow = said(path, asked)
    assert quick == slow


def test_nothing_is_converted_where_a_stamp_fits(stamped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, copy = stamped, stamped.with_name("copy")
    before = path.stat().st_ino, path.read_bytes()
    monkeypatch.setattr(conversion, "convert_anew", never)
    for asked in (Request(), Request(only_checks=True)):
        assert convert_one(path, asked).status == "unchanged"
    assert (path.stat().st_ino, path.read_bytes()) == before
    assert run("convert", path, "-o", copy).status == 0
    assert copy.read_bytes() == before[1]


def test_other_requests_and_other_bytes_are_compared(stamped: Path) -> None:
    assert up_to_date(Request(), load(stamped), NAMED) is not None
    others = (
        Request(Options(2)),
        Request(Options(level=1)),
        Request(Options(source="eh_frame")),
        Request(reader="ld"),
        Request(debug_file="auto"),
        Request(replaces=True),
        Request(wants_account=True),
        Request(conditions=Conditions(fail_under=1)),
        Request(conditions=Conditions(is_strict=True)),
    )
    for asked in others:
        assert up_to_date(asked, load(stamped), NAMED) is None, asked
    data = stamped.read_bytes()
    for at in range(64, len(data)):
        changed = bytearray(data)
        changed[at] ^= 1
        image = load(bytes(changed[:at] + changed[at:]))
        assert stamp_of(image.data, key_of(Request(), image)) is None, at


def test_another_revision_is_compared(stamped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = stamped.read_bytes()
    monkeypatch.setattr(stamps, "REVISION", REVISION + 1)
    assert up_to_date(Request(), load(stamped), NAMED) is None
    assert convert_one(stamped).status == "unchanged"
    assert stamped.read_bytes() == data


def forged(data: bytes) -> bytes:
    """Return an object with a stamp that says that its section is complete."""
    (end,) = struct.unpack_from("<Q", data, 40)
    stamp = Stamp(1, 1, 0, 0, warnings=()).pack()
    start = data[:40] + struct.pack("<Q", end + len(stamp)) + data[48:end]
    return bytes(sealed(Joined([start, stamp, data[end:]]), key_of(Request(), load(data))))


@pytest.mark.parametrize("has_section", [False, True])
def test_a_stamp_answers_no_condition(has_section: bool, tmp_path: Path) -> None:  # noqa: FBT001
    path = tmp_path / "file.o"
    path.write_bytes(object_with_gap())
    if has_section:
        assert convert_one(path, Request(verifies=False)).warnings
    path.write_bytes(forged(path.read_bytes()))
    assert stamp_of(path.read_bytes(), key_of(Request(), load(path))) is not None
    assert convert_one(path, Request(conditions=Conditions(fail_under=10), only_checks=True)).kind is None
    for asked in (Conditions(is_strict=True), Conditions(fail_under=99.9)):
        assert convert_one(path, Request(conditions=asked)).kind is ErrorKind.INCOMPLETE
    # Without a condition, the file stays; without a section, it is not what the stamp says.
    assert convert_one(path).status == ("unchanged" if has_section else "converted")
    assert load(path).has_sframe


def test_what_nobody_has_checked_has_no_stamp(tmp_path: Path) -> None:
    path, checked = tmp_path / "file.o", tmp_path / "checked.o"
    for each, asked in ((path, Request(verifies=False)), (checked, Request())):
        each.write_bytes(OBJECT)
        assert convert_one(each, asked).status == "converted"
    assert (up_to_date(Request(), load(path), NAMED), b"c2sstmp2" in path.read_bytes()) == (None, False)
    assert b"c2sstmp2" in checked.read_bytes()


def change_system(path: Path) -> None:
    """Change ELFOSABI, as elfedit does: neither stamp nor record fit any longer, and all stays in its place."""
    data = path.read_bytes()
    path.write_bytes(data[:7] + bytes([data[7] ^ 3]) + data[8:])


def test_the_stamp_of_a_file_that_was_changed_is_not_sealed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = copied(ROOT / "testdata/converted/amd64-slack", tmp_path)
    assert convert_one(path, Request(Options(2), replaces=True)).status == "converted"
    change_system(path)
    # As if it were a part of the file, which stays.
    monkeypatch.setattr(linked, "stamp_size", lambda _: 0)
    assert convert_one(path, Request(verifies=False)).status == "converted"
    end = load(path).header.section_headers_offset
    assert path.read_bytes()[end - 8 : end] == b"c2sstmp2"
    assert up_to_date(Request(), load(path), NAMED) is None


@pytest.mark.parametrize("name", ["amd64-slack", "s390x-linked", "amd64-object.o"])
def test_files_that_are_changed_after_each_run_do_not_grow(name: str, tmp_path: Path) -> None:
    path = copied(ROOT / "testdata/converted" / name, tmp_path)
    sizes = list[int]()
    for version in (2, 3) * 3:
        assert convert_one(path, Request(Options(version))).status == "converted"
        sizes.append(path.stat().st_size)
        change_system(path)
    assert sizes[2:4] == sizes[4:]


def test_debug_file_is_part_of_the_request() -> None:
    image, found = load(OBJECT), set[bytes]()
    for asked, debug_file in ((Request(), None), *((Request(debug_file="auto"), f) for f in (None, OBJECT, b""))):
        image.debug_file = None if debug_file is None else load(debug_file or object_with_gap())
        found.add(key_of(asked, image))
    assert len(found) == 4


def test_reports_and_names_change_no_byte(tmp_path: Path) -> None:
    for number, options in enumerate(
        ((), ("--report", tmp_path / "report"), ("-v",), ("--strict",), ("--fail-under", "1"))
    ):
        path = tmp_path / f"file{number}"
        path.write_bytes(OBJECT)
        assert run("--in-place", path, *options).status == 0
        assert path.read_bytes() == (tmp_path / "file0").read_bytes()


def test_a_report_of_a_tree_that_is_up_to_date_reads_no_code(tmp_path: Path) -> None:
    """It has all but the accounts; one of a file that is named has its account, too."""
    path, report = tmp_path / "tree" / "file.o", tmp_path / "report"
    path.parent.mkdir()
    path.write_bytes(object_with_gap())
    lines = []
    for name in (path.parent, path.parent, path):
        assert run("--in-place", "--for", "ld", "--report", report, name).status == 0
        lines.append(json.loads(report.read_text()))
    first, second, named = lines
    assert (first["status"], second["status"]) == ("converted", "unchanged")
    assert first["account"] == named["account"] != second["account"] is None
    same = ("file", "kind", "warnings", "section_size", "described_count", "left_out_count", "in_part_count")
    assert [first[key] for key in same] == [second[key] for key in same]


def test_a_forged_stamp_only_keeps_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, other = tmp_path / "file.o", tmp_path / "other.o"
    for each in (path, other):
        each.write_bytes(OBJECT)
    convert_one(other)
    # The forger has a section with wrong rows, and the program to seal it.
    with monkeypatch.context() as forger:

        def with_wrong_rows(content: LazyBytes, request: bytes) -> LazyBytes:
            data = bytes(content)
            at = data.index(b"\xe2\xde") + 40
            return sealed(Joined([data[:at], bytes([data[at] ^ 1]), data[at + 1 :]]), request)

        forger.setattr(conversion, "sealed", with_wrong_rows)
        forger.setattr(emit, "check_asked", lambda *_, **__: None)
        convert_one(path)
    data = path.read_bytes()
    assert data != other.read_bytes()
    assert convert_one(path).status == "unchanged"
    assert path.read_bytes() == data
    assert run("verify", path).status != 0
    assert convert_one(path, Request(replaces=True)).status == "converted"
    assert path.read_bytes() == other.read_bytes()


def test_a_file_of_an_earlier_release_is_stamped_when_it_is_written(tmp_path: Path) -> None:
    path = copied(ROOT / "testdata/converted/amd64-object.o", tmp_path)
    assert convert_one(path).status == "unchanged"
    assert up_to_date(Request(), load(path), NAMED) is None
    assert convert_one(path, Request(Options(2))).status == "converted"
    assert up_to_date(Request(Options(2)), load(path), NAMED) is not None


def test_damaged_stamps_are_no_error(stamped: Path) -> None:
    data = stamped.read_bytes()
    end = data.index(b"c2sstmp2")
    for size in (0, 1, 8, end, end + 1, 1 << 40, (1 << 64) - 1):
        changed = data[: end - 8] + size.to_bytes(8, "little") + data[end:]
        assert stamp_of(changed, key_of(Request(), load(stamped))) is None

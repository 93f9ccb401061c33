# SPDX-License-Identifier: Apache-2.0
"""ELF files are found in folders; one that cannot be opened is reported, and loses no other."""

import gzip
import lzma
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from cfi2sframe.cli import lookup
from cfi2sframe.cli.parsers import verb_parser
from cfi2sframe.cli.results import Result, read_source
from cfi2sframe.cli.verbs import parse
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.errors import ErrorKind, RequestError
from cfi2sframe.files import find
from cfi2sframe.files.find import find_sources, names_from
from cfi2sframe.files.source import Source
from tests.support.cli import SECTION, run
from tests.support.jobs import OBJECT
from tests.support.needs import need
from tests.support.report import library

ELF = library(1)


def _opened(path: Path) -> str:
    """Return the name of a file that can be read, or why it cannot."""
    (source,) = find_sources([str(path)])
    (result,) = _results(source)
    return result.answer or result.reason


def _results(source: Source) -> list[Result[str]]:
    """What becomes of a file, or of those in an archive, when it is asked for its name."""
    return read_source(source, lambda data, name: ElfImage(data, name).name)


def _contents(path: Path) -> dict[str, bytes]:
    """The names and bytes of the files that are read of an archive."""
    (source,) = find_sources([str(path)], with_archives=True)
    assert source.is_archive
    results = read_source(source, lambda data, _: bytes(data))
    return {result.source.name: result.answer for result in results if result.answer is not None}


def _write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    """Opened again, an anonymous pipe would have lost its beginning; a FIFO with a name could be waited for forever."""
    read_end, write_end = os.pipe()
    with os.fdopen(read_end), os.fdopen(write_end, "wb") as pipe:
        pipe.write(ELF)
        pipe.close()
        assert _opened(Path(f"/dev/fd/{read_end}")) == f"/dev/fd/{read_end}"
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert _opened(fifo) == "a FIFO: redirect standard input from it (-)"
    for words in (
        ("coverage", fifo),
        ("lookup", fifo, "0"),
        (fifo, "-o", tmp_path / "out"),
        ("remove", "--check", fifo),
    ):
        assert run(*words).failed(3, fifo)
    # As for the other verbs, it is the system's error.
    with pytest.raises(OSError, match="a FIFO"):
        lookup.run(parse(verb_parser("lookup"), [str(fifo), "0"]))


@pytest.mark.parametrize(
    ("start", "hint"),
    [
        (b"!<arch>\ndebian-binary   ", "a package: unpack it first (dpkg-deb -x)"),
        (b"\xed\xab\xee\xdb", "a package: unpack it first (rpm2cpio)"),
        (b"#!/bin/sh\n", "a script: use the program that it starts"),
        (gzip.compress(b"\x7fELF", mtime=0), "compressed: decompress it first (gzip -d)"),
        (lzma.compress(b"\x7fELF"), "compressed: decompress it first (xz -d)"),
        (b"(\xb5/\xfd", "compressed: decompress it first (zstd -d)"),
        (b"\xcf\xfa\xed\xfe", "a Mach-O file: SFrame is defined for ELF files only"),
        (SECTION.assemble(), "the raw bytes of an SFrame section, which dump and verify read"),
    ],
)
def test_what_is_taken_for_an_elf_file_is_not_read(start: bytes, hint: str, tmp_path: Path) -> None:
    """The message of every verb says what to do."""
    path = _write(tmp_path / "x", start + bytes(92))
    assert _opened(path) == f"not an ELF file, but {hint}"
    for words in (("--in-place", path), ("size", path)):
        done = run(*words)
        assert done.failed(3, path)
        assert done.err == (f"cfi2sframe: {path}: error: not an ELF file, but {hint}",)


def test_four_bytes_of_a_pipe_tell_what_it_is_not() -> None:
    for start, hint in ((gzip.compress(ELF), "compressed: decompress it first (gzip -d)"), (b"#!/", "a script: use")):
        assert (
            run("size", "-", stdin=start).err[0].startswith(f"cfi2sframe: <stdin>: error: not an ELF file, but {hint}")
        )


def test_in_folders_nothing_else_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of /proc seem to be empty, and reading them may have effects."""
    opened: list[str] = []

    def open_and_note(path: str) -> int:
        opened.append(os.path.basename(path))
        return os.open(path, os.O_RDONLY)

    monkeypatch.setattr(find, "open_unfollowed", open_and_note)
    for name, data in (("a.so", ELF), ("empty", b""), ("text", b"text")):
        _write(tmp_path / name, data)
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("a.so")
    assert len(find_sources([str(tmp_path)])) == 1
    assert opened == ["a.so", "text"]


@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_a_file_in_a_folder_is_exchanged_after_it_was_listed(kind: str, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    file = _write(tree / "x", ELF)
    (source,) = find_sources([str(tree)])
    file.unlink()
    if kind == "link":
        file.symlink_to(_write(tmp_path / "other", ELF))
    else:
        os.mkfifo(file)
    reasons = {
        "link": ("Too many levels of symbolic links", ErrorKind.SYSTEM),
        "fifo": ("no longer a regular file", ErrorKind.CHANGED),
    }
    assert _results(source) == [Result(source, None, *reasons[kind])]


def test_what_a_kill_has_left_is_no_file_of_a_folder(tmp_path: Path) -> None:
    _write(tmp_path / ".cfi2sframe-0123", ELF[:100])
    assert find_sources([str(tmp_path)]) == []


def test_a_file_that_goes_away(tmp_path: Path) -> None:
    source = Source(str(tmp_path / "gone"), "gone", 4)
    assert _results(source) == [Result(source, None, "No such file or directory", ErrorKind.SYSTEM)]


# Patterns

FILES = ("bin/tool", "lib/debug/tool.debug", "lib/tool.so", "share/lib/debug/x", "tool")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder by its resolved path."""
    path = tmp_path.resolve() / "root"
    for name in FILES:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(OBJECT)
    return path


def found(root: Path, *patterns: str) -> list[str]:
    """The names that a walk gives."""
    return [source.name for source in find_sources([str(root)], patterns, is_relative=True)]


@pytest.mark.parametrize(
    ("pattern", "left_out"),
    [
        ("tool", {"bin/tool", "tool"}),
        ("tool*", {"bin/tool", "lib/debug/tool.debug", "lib/tool.so", "tool"}),
        ("debug", {"lib/debug/tool.debug", "share/lib/debug/x"}),
        ("debug/", {"lib/debug/tool.debug", "share/lib/debug/x"}),
        ("lib", {"lib/debug/tool.debug", "lib/tool.so", "share/lib/debug/x"}),
        ("lib/debug", {"lib/debug/tool.debug"}),
        ("./lib/debug/", {"lib/debug/tool.debug"}),
        ("*/debug", {"lib/debug/tool.debug", "share/lib/debug/x"}),
        ("lib/*", {"lib/debug/tool.debug", "lib/tool.so"}),
        ("/lib/debug", set()),
        ("root", set()),
        ("[bl]i[bn]/tool", {"bin/tool"}),
        ("TOOL", set()),
        ("", set()),
        ("/", set()),
    ],
)
def test_patterns(root: Path, pattern: str, left_out: set[str]) -> None:
    assert set(found(root)) - set(found(root, pattern)) == left_out
    assert set(found(root, "nothing", pattern)) == set(FILES) - left_out


def test_a_pattern_that_begins_with_a_slash_is_an_absolute_path(root: Path) -> None:
    """By the name that the user gave, or the one that it leads to."""
    link = root.with_name("link")
    link.symlink_to("root")
    assert found(root, f"{root}/lib") == ["tool", "bin/tool", "share/lib/debug/x"]
    for name in (root, link):
        patterns = (f"{name}/lib/*.so", f"{name}/bin")
        names = [source.name.removeprefix(f"{link}/") for source in find_sources([str(link)], patterns)]
        assert names == ["tool", "lib/debug/tool.debug", "share/lib/debug/x"]


def test_what_is_named_is_not_left_out(root: Path) -> None:
    patterns = ("debug", "/*/bin")
    assert found(root, *patterns) == ["tool", "lib/tool.so"]
    sources = find_sources([str(root), str(root / "bin" / "tool")], patterns)
    assert [source.name.removeprefix(f"{root}/") for source in sources] == ["tool", "lib/tool.so", "bin/tool"]


def test_what_is_mounted_in_a_folder_is_part_of_it(root: Path, mount: Callable[..., None]) -> None:
    mount(root / "lib", "-t", "tmpfs", "tmpfs")
    (root / "lib" / "mine.so").write_bytes(OBJECT)
    assert set(found(root)) == {"tool", "bin/tool", "share/lib/debug/x", "lib/mine.so"}
    assert [source.name for source in find_sources([str(root)], ["share"])] == [
        f"{root}/{name}" for name in ("tool", "bin/tool", "lib/mine.so")
    ]


def test_members_of_an_archive(tmp_path: Path) -> None:
    """In the order and with the names of `ar t`; what is no ELF file is left out."""
    need("ar")
    names = ["a.o", "a-name-longer-than-sixteen-characters.o", "text", "odd.o"]
    contents = [OBJECT, OBJECT + b"x", b"text", OBJECT + b"yyy"]
    for name, data in zip(names, contents, strict=True):
        (tmp_path / name).write_bytes(data)
    archive = tmp_path / "lib.a"
    subprocess.run(["ar", "rcD", "lib.a", *names], cwd=tmp_path, check=True)
    assert subprocess.run(["ar", "t", archive], capture_output=True, text=True, check=True).stdout.split() == names
    elf_files = [(name, data) for name, data in zip(names, contents, strict=True) if name != "text"]
    assert list(_contents(archive).items()) == [(f"{archive}({name})", data) for name, data in elf_files]
    for verb in ("coverage", "size", "audit"):
        assert run(verb, archive).status == 0
    data = archive.read_bytes()
    for size in range(9, len(data), 31):
        archive.write_bytes(data[:size])
        (source,) = find_sources([str(archive)], with_archives=True)
        last = _results(source)[-1:]
        assert last == [] or last[0].answer or last[0].kind is ErrorKind.DAMAGED
    archive.write_bytes(data[:-60])
    assert run("size", archive).status == 3
    hint = "a static archive: use the program linked with it, or extract the objects first (ar x)"
    assert run("--in-place", archive).err == (f"cfi2sframe: {archive}: error: not an ELF file, but {hint}",)


@pytest.mark.parametrize("kind", ["--format=gnu", "--format=bsd", "--format=darwin", "--thin"])
def test_archives_of_every_kind_also_in_directories(kind: str, tmp_path: Path) -> None:
    program = need("llvm-ar")
    contents = {"a.o": OBJECT, "a-name-longer-than-sixteen-characters.o": OBJECT + b"x", "text": b"text"}
    objects, tree = tmp_path / "objects", tmp_path / "tree"
    objects.mkdir()
    tree.mkdir()
    for name, data in contents.items():
        (objects / name).write_bytes(data)
    names = [os.path.relpath(objects / name, tree) for name in contents]
    subprocess.run([program, "rcD", kind, "lib.a", *names], cwd=tree, check=True)
    (tree / "link").symlink_to("lib.a")
    assert len(_contents(tree / "link")) == 2
    # What a thin archive names is found by itself, or is not in the directory.
    assert len(find_sources([str(tree)], with_archives=True)) == (kind != "--thin")
    read = _contents(tree / "lib.a")
    assert all(name.startswith(f"{tree}/lib.a(") for name in read)
    assert [re.split("[(/]", name)[-1] for name in read] == ["a.o)", "a-name-longer-than-sixteen-characters.o)"]
    for found, data in zip(read.values(), contents.values(), strict=False):
        assert found[: len(data)] == data
    assert find_sources([str(tree)]) == []
    assert run("coverage", tree).status == (0 if kind != "--thin" else 3)


def test_an_archive_in_a_thin_archive(tmp_path: Path) -> None:
    need("ar")
    for name in ("a.o", "b.o"):
        (tmp_path / name).write_bytes(OBJECT)
    subprocess.run(["ar", "rcD", "inner.a", "a.o", "b.o"], cwd=tmp_path, check=True)
    subprocess.run(["ar", "rcDT", "outer.a", "inner.a"], cwd=tmp_path, check=True)
    found = _contents(tmp_path / "outer.a")
    assert list(found.values()) == [OBJECT, OBJECT]


def test_a_thin_archive_without_its_files(tmp_path: Path) -> None:
    need("ar")
    (tmp_path / "a.o").write_bytes(OBJECT)
    subprocess.run(["ar", "rcDT", "lib.a", "a.o"], cwd=tmp_path, check=True)
    os.replace(tmp_path / "a.o", tmp_path / "b.o")
    (tmp_path / "a.o").symlink_to("b.o")
    assert run("size", tmp_path / "lib.a").status == 0
    (tmp_path / "a.o").unlink()
    archive = tmp_path / "lib.a"
    assert run("size", archive).err == (f"cfi2sframe: {archive}(a.o): error: No such file or directory",)
    hint = "a thin archive: use the program linked with it, or the objects that it names"
    assert run("--in-place", archive).err == (f"cfi2sframe: {archive}: error: not an ELF file, but {hint}",)


def test_a_word_of_the_program_itself_is_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`cfi2sframe --in-place *` in a folder into which another user has put `@a` and `a`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_text("--help")
    (tmp_path / "@a").write_bytes(OBJECT)
    assert run("--in-place", "@a") == (0, b"", ())
    assert run("--in-place", "@b") == (3, b"", ("cfi2sframe: @b: error: No such file or directory",))


def test_names_end_with_nul(tmp_path: Path) -> None:
    listed = tmp_path / "list"
    for data, names in (
        (b"", []),
        (b"a\0b c\0", ["a", "b c"]),
        (b"a\0two\nlines", ["a", "two\nlines"]),
        (b"one", ["one"]),
        (b"\0", []),
        (b"latin-\xe9\0", [os.fsdecode(b"latin-\xe9")]),
    ):
        listed.write_bytes(data)
        assert names_from(str(listed)) == names


def test_what_find_lists_besides_files_is_left_out(tmp_path: Path) -> None:
    """Reading verbs and those that write, alone and beside a directory: a listed directory is never searched."""
    folder = tmp_path / "folder"
    for path in (folder / "inner" / "hidden", folder / "object", folder / "text"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"text" if path.name == "text" else OBJECT)
    (folder / "link").symlink_to("object")
    (folder / "dangling").symlink_to("nowhere")
    os.mkfifo(folder / "fifo")
    listed = tmp_path / "list"
    listed.write_bytes(b"".join(os.fsencode(path) + b"\0" for path in [folder, *folder.iterdir()]))
    assert sorted(map(os.path.basename, names_from(str(listed)))) == ["link", "object", "text"]
    (tmp_path / "empty").mkdir()
    for more in ([], [_write(tmp_path / "other", OBJECT)], [tmp_path / "empty"]):
        for words in (("coverage",), ("size",), ("audit",), ("verify", "--would-be"), ("--in-place",), ("dump",)):
            assert run(*words, *more, "--files-from", listed).status == 0
    assert (folder / "inner" / "hidden").read_bytes() == OBJECT
    listed.write_bytes(b"missing\0")
    assert names_from(str(listed)) == ["missing"]


@pytest.mark.parametrize(("data", "message"), [(b"a.o\nb.o\n", "NUL"), (b"\x7fELF\2\1\1\0\0/lib/ld.so\0", "empty one")])
def test_what_is_no_list_is_taken_for_a_mistake(tmp_path: Path, data: bytes, message: str) -> None:
    listed = tmp_path / "list"
    listed.write_bytes(data)
    with pytest.raises(RequestError, match=message):
        names_from(str(listed))

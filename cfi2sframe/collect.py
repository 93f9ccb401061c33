# SPDX-License-Identifier: Apache-2.0
"""Find the ELF files in what a user names: files, folders, static archives, Debian and RPM packages.

Two steps, so that a pool of processes can share the work: `find_sources` lists files without reading more than their
first bytes; `open_source` yields the ELF images of one of them, one after the other and one in memory at a time.
"""

from __future__ import annotations

import os
import stat
import struct
import tarfile
from typing import IO, TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

from cfi2sframe.elf.image import ElfImage
from cfi2sframe.elf.records import Buffer
from cfi2sframe.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cfi2sframe.elf.records import FileData

_ELF_MAGIC: Final = b"\x7fELF"
_AR_MAGIC: Final = b"!<arch>\n"
_THIN_MAGIC: Final = b"!<thin>\n"
_RPM_MAGIC: Final = b"\xed\xab\xee\xdb"
#: An archive member's header: name, times and owners, size in decimal, two bytes that end it.
_AR_HEADER: Final = struct.Struct("16s12s6s6s8s10s2s")
_AR_NAMES: Final = "//"
_CPIO_HEADER_SIZE: Final = 110
_CPIO_MAGICS: Final = (b"070701", b"070702")


class Readable(Protocol):
    """A stream of bytes that can be read from start to end."""

    def read(self, size: int = ..., /) -> bytes:
        """Return at most `size` bytes; fewer only at the end."""


SourceKind = Literal["elf", "archive", "deb", "rpm"]


class Source(NamedTuple):
    """A file to open. `name` is what reports call it, `size` its bytes on disk."""

    path: str
    name: str
    kind: SourceKind
    size: int


class Unusable(NamedTuple):
    """What cannot be opened, or read to the end, and why."""

    name: str
    reason: str


# Finding


def find_sources(paths: Iterable[str]) -> Iterator[Source | Unusable]:
    """Yield what to open under the paths, in their order; folders give their ELF files, sorted by name.

    In folders, symbolic links and further names of a file seen already are passed over.
    """
    seen: set[tuple[int, int]] = set()
    for path in paths:
        if not os.path.isdir(path):
            yield _named(path, path)
            continue
        for file in _files_under(path):
            found = _in_folder(file, file, seen)
            if found is not None:
                yield found


def find_relative(root: str) -> Iterator[Source | Unusable]:
    """Yield what `find_sources` does for one path, named relative to it; a file is named by its last part."""
    if not os.path.isdir(root):
        yield _named(root, os.path.basename(root))
        return
    seen: set[tuple[int, int]] = set()
    for file in _files_under(root):
        found = _in_folder(file, os.path.relpath(file, root), seen)
        if found is not None:
            yield found


def _files_under(root: str) -> Iterator[str]:
    for folder, folders, names in os.walk(root):
        folders.sort()
        yield from (os.path.join(folder, name) for name in sorted(names))


def _in_folder(path: str, name: str, seen: set[tuple[int, int]]) -> Source | Unusable | None:
    try:
        status = os.lstat(path)
        identity = (status.st_dev, status.st_ino)
        if not stat.S_ISREG(status.st_mode) or identity in seen:
            return None
        seen.add(identity)
        with open(path, "rb") as file:
            if file.read(4) != _ELF_MAGIC:
                return None
    except OSError as error:
        return Unusable(name, error.strerror or str(error))
    return Source(path, name, "elf", status.st_size)


def _named(path: str, name: str) -> Source | Unusable:
    """Say what a file is that the user named."""
    try:
        size = os.stat(path).st_size
        with open(path, "rb") as file:
            start = file.read(len(_AR_MAGIC) + 16)
    except OSError as error:
        return Unusable(name, error.strerror or str(error))
    kind: SourceKind = "elf"
    if start.startswith(_THIN_MAGIC):
        return Unusable(name, "a thin archive holds no members; name the objects themselves")
    if start.startswith(_AR_MAGIC):
        kind = "deb" if start[len(_AR_MAGIC) :].startswith(b"debian-binary") else "archive"
    elif start.startswith(_RPM_MAGIC):
        kind = "rpm"
    return Source(path, name, kind, size)


# Opening


def open_source(source: Source) -> Iterator[ElfImage | Unusable]:
    """Yield the images of a source; of a container, those of its ELF members. Raises nothing but `OSError`.

    An image is to be used before the next one is asked for: then its file is closed.
    """
    try:
        if source.kind == "elf":
            from cfi2sframe.elf.load import load

            image = load(source.path, source.name)
            try:
                yield image
            finally:
                image.close()
        elif source.kind == "archive":
            yield from _open_archive(source)
        elif source.kind == "deb":
            yield from _open_deb(source)
        else:
            yield from _open_rpm(source)
    except InputError as error:
        yield Unusable(source.name, str(error))


def _image(name: str, data: FileData) -> ElfImage | Unusable:
    try:
        return ElfImage(data, name)
    except InputError as error:
        return Unusable(name, str(error))


def member_name(source: Source, member: str) -> str:
    """Return what reports call a member: `libx.a(member.o)`, `x.deb(usr/bin/tool)`."""
    return f"{source.name}({member})"


class _Member(NamedTuple):
    name: str
    data: FileData


def _open_archive(source: Source) -> Iterator[ElfImage | Unusable]:
    for member in _members(source):
        if bytes(member.data[:4]) == _ELF_MAGIC:
            yield _image(member_name(source, member.name), member.data)


def _members(source: Source) -> Iterator[_Member]:
    """Yield the members of an archive in the common format of ar, with GNU's and BSD's long names.

    Raises `InputError` when it is damaged.
    """
    from cfi2sframe.elf.load import read_file

    data = read_file(source.path)
    try:
        yield from _members_in(data)
    finally:
        if not isinstance(data, Buffer):
            data.close()


def _members_in(data: FileData) -> Iterator[_Member]:
    from cfi2sframe.elf.contents import part_of

    names = b""
    position = len(_AR_MAGIC)
    while position + _AR_HEADER.size <= len(data):
        raw_name, *_, raw_size, end = _AR_HEADER.unpack(data[position : position + _AR_HEADER.size])
        if end != b"`\n" or not raw_size.strip().isdigit():
            raise InputError("damaged member header", "archive", position)
        position += _AR_HEADER.size
        size = int(raw_size)
        if position + size > len(data):
            raise InputError("truncated member", "archive", position)
        content = part_of(data, position, position + size)
        position += size + size % 2
        name = raw_name.decode("ascii", "backslashreplace").rstrip(" ")
        if name == _AR_NAMES:
            names = bytes(content)
        elif name.startswith("#1/") and name[3:].isdigit():
            length = min(int(name[3:]), size)
            yield _Member(_text(bytes(content[:length]).rstrip(b"\0")), part_of(content, length, size))
        elif name[:1] == "/" and name[1:].isdigit():
            long_name = names[int(name[1:]) :].split(b"\n", 1)[0]
            yield _Member(_text(long_name.removesuffix(b"/")), content)
        elif name not in ("/", "/SYM64/"):
            yield _Member(name.removesuffix("/"), content)


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


# Packages


def _open_deb(source: Source) -> Iterator[ElfImage | Unusable]:
    """Open a Debian package: an archive with a compressed tar file of the files that it installs (deb(5))."""
    for member in _members(source):
        if member.name.startswith("data.tar"):
            yield from _open_tar(source, member)
            return
    raise InputError("a Debian package without data.tar")


def _open_tar(source: Source, member: _Member) -> Iterator[ElfImage | Unusable]:
    import zlib
    from lzma import LZMAError

    from cfi2sframe.elf.contents import stream_of

    compressed: IO[bytes] = stream_of(member.data)
    if member.name.endswith(".zst"):
        compressed = _zstd_reader(compressed)
    try:
        with tarfile.open(fileobj=compressed, mode="r|*") as tar:
            for entry in tar:
                content = tar.extractfile(entry) if entry.isfile() else None
                if content is not None:
                    yield from _package_member(source, entry.name, content)
    except (tarfile.TarError, LZMAError, zlib.error, EOFError, OSError, _zstd_error()) as error:
        raise InputError(f"damaged package: {error}", member.name) from None


def _package_member(source: Source, name: str, content: IO[bytes]) -> Iterator[ElfImage | Unusable]:
    start = content.read(len(_ELF_MAGIC))
    if start == _ELF_MAGIC:
        yield _image(member_name(source, name.removeprefix("./")), start + content.read())


def _zstd_reader(compressed: IO[bytes]) -> IO[bytes]:
    try:
        import zstandard
    except ImportError:
        raise InputError("compressed with zstd; pip install 'cfi2sframe[packages]' reads it") from None
    reader: IO[bytes] = zstandard.ZstdDecompressor().stream_reader(compressed, read_across_frames=True)
    return reader


def _zstd_error() -> type[Exception]:
    try:
        from zstandard import ZstdError
    except ImportError:
        return EOFError
    error: type[Exception] = ZstdError
    return error


def _open_rpm(source: Source) -> Iterator[ElfImage | Unusable]:
    """Open an RPM package: headers, which a library reads, and a compressed cpio archive."""
    try:
        import rpmfile
        from rpmfile.errors import RPMError
    except ImportError:
        raise InputError("an RPM package; pip install 'cfi2sframe[packages]' reads it") from None
    import zlib
    from lzma import LZMAError

    with open(source.path, "rb") as file:
        try:
            package = rpmfile.RPMFile(fileobj=file)
            compression, offset = package.headers.get("archive_compression", b"gzip"), package.data_offset
        except (RPMError, AssertionError, ValueError, KeyError, struct.error) as error:
            raise InputError(f"damaged package: {error}", "headers") from None
        file.seek(offset)
        try:
            yield from _open_cpio(source, _decompressed(file, compression))
        except (LZMAError, zlib.error, EOFError, OSError, _zstd_error()) as error:
            raise InputError(f"damaged package: {error}", "payload") from None


def _decompressed(file: IO[bytes], compression: bytes) -> Readable:
    import bz2
    import gzip
    import lzma

    if compression == b"zstd":
        return _zstd_reader(file)
    if compression in (b"xz", b"lzma"):
        return lzma.LZMAFile(file)
    if compression == b"bzip2":
        return bz2.BZ2File(file)
    if compression == b"gzip":
        return gzip.GzipFile(fileobj=file)
    raise InputError(f"unknown compression {compression.decode('ascii', 'backslashreplace')}", "payload")


def _open_cpio(source: Source, payload: Readable) -> Iterator[ElfImage | Unusable]:
    """Yield the images of a cpio archive in the "new ASCII" format (cpio(5)), read from end to end once."""
    while True:
        header = payload.read(_CPIO_HEADER_SIZE)
        if header[:6] not in _CPIO_MAGICS or len(header) < _CPIO_HEADER_SIZE:
            raise InputError("damaged or unknown cpio header", "payload")
        try:
            mode, size, name_size = (int(header[at : at + 8], 16) for at in (14, 54, 94))
        except ValueError:
            raise InputError("damaged cpio header", "payload") from None
        name = _text(payload.read(name_size).rstrip(b"\0"))
        payload.read(-(_CPIO_HEADER_SIZE + name_size) % 4)
        if name == "TRAILER!!!":
            return
        start = payload.read(min(size, len(_ELF_MAGIC)))
        rest = payload.read(size - len(start))
        payload.read(-size % 4)
        if len(start) + len(rest) < size:
            raise InputError("truncated", "payload")
        if start == _ELF_MAGIC and stat.S_ISREG(mode):
            yield _image(member_name(source, name.removeprefix("./")), start + rest)

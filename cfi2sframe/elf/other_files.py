# SPDX-License-Identifier: Apache-2.0
"""Files that are often taken for ELF files: what they are, by their first bytes, and what to use instead."""

from typing import Final

_ONLY_ELF: Final = "SFrame is defined for ELF files only"
#: The first match counts. Only four bytes of a pipe have been read.
_STARTS: Final = (
    (b"!<arch>\ndebian-binary", "a package: unpack it first (dpkg-deb -x)"),
    (b"\xed\xab\xee\xdb", "a package: unpack it first (rpm2cpio)"),
    (b"BC\xc0\xde", "LLVM bitcode: use the linked file"),
    (b"!<arch>\n", "a static archive: use the program linked with it, or extract the objects first (ar x)"),
    (b"!<thin>\n", "a thin archive: use the program linked with it, or the objects that it names"),
    (b"#!", "a script: use the program that it starts"),
    (b"\x1f\x8b", "compressed: decompress it first (gzip -d)"),
    (b"\x28\xb5\x2f\xfd", "compressed: decompress it first (zstd -d)"),
    (b"\xfd7zX", "compressed: decompress it first (xz -d)"),
    (b"\xe2\xde", "the raw bytes of an SFrame section, which dump and verify read"),
    (b"\xde\xe2", "the raw bytes of an SFrame section, which dump and verify read"),
    (b"MZ", f"a PE image, as Windows, UEFI and compressed kernels are: {_ONLY_ELF}, such as vmlinux"),
    *(
        (magic, f"a Mach-O file: {_ONLY_ELF}")
        for magic in (b"\xcf\xfa\xed\xfe", b"\xce\xfa\xed\xfe", b"\xca\xfe\xba\xbe")
    ),
)


def hint_about(start: bytes) -> str:
    """Return the end of a message on a file that is not ELF: what it is by its first bytes, and what to do; or ""."""
    return next((f", but {hint}" for magic, hint in _STARTS if start.startswith(magic)), "")

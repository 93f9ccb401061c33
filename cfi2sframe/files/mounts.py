# SPDX-License-Identifier: Apache-2.0
"""Which mounted file system a folder is on. It is asked of an open folder: what a path leads to may be exchanged.

The kernel tells by which mount a descriptor was opened (`mnt_id` in /proc/self/fdinfo), which also tells bind mounts
of one file system apart. Without /proc only the device is known.
"""

from __future__ import annotations

import os
from typing import Final, NamedTuple

#: Views of the kernel and of devices, as /proc/self/mountinfo names them: none of their files is anybody's to convert.
PSEUDO_TYPES: Final = frozenset(
    {
        *("autofs", "binder", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs"),
        *("efivarfs", "functionfs", "fusectl", "hugetlbfs", "mqueue", "nfsd", "nsfs", "proc", "pstore", "resctrl"),
        *("rpc_pipefs", "securityfs", "selinuxfs", "smackfs", "sysfs", "tracefs", "xenfs"),
    }
)


class Mount(NamedTuple):
    """Where an open file or folder is: the device of its file system, and the mount that led to it, None if unknown."""

    device: int
    number: int | None

    @classmethod
    def of(cls, descriptor: int) -> Mount:
        """Return the mount of an open file. Raises `OSError`."""
        return cls(os.fstat(descriptor).st_dev, _mount_number(descriptor))


class Boundary:
    """The mount that a walk began on; it tells which folders are on another one, and not to be walked into.

    With `one_file_system` these are all others, without it those of the kernel's own file systems (`PSEUDO_TYPES`), and
    every one of which that is not known.
    """

    def __init__(self, top: Mount, *, one_file_system: bool) -> None:
        self._top = top
        self._one_file_system = one_file_system
        self._types: dict[int, str] | None = None

    def leaves_out(self, folder: int) -> bool:
        """Whether an open folder is not to be walked into. Raises `OSError`."""
        here = Mount.of(folder)
        if here == self._top:
            return False
        if self._one_file_system:
            return True
        # A subvolume has a device of its own, and no mount.
        return here.number is None or (here.number != self._top.number and self._is_pseudo(here.number))

    def leaves_out_file(self, file: int) -> bool:
        """Whether an open file is itself a mount point, and not to be used.

        Its device does not tell: union file systems keep the devices of the files below.
        """
        number = _mount_number(file)
        if number is None or number == self._top.number:
            return False
        return self._one_file_system or self._is_pseudo(number)

    def _is_pseudo(self, number: int) -> bool:
        if self._types is None:
            self._types = _types_of_mounts()
        return self._types.get(number, "proc") in PSEUDO_TYPES


def _mount_number(descriptor: int) -> int | None:
    try:
        with open(f"/proc/self/fdinfo/{descriptor}", "rb") as file:
            for line in file:
                if line.startswith(b"mnt_id:"):
                    return int(line[7:])
    except (OSError, ValueError):
        return None
    return None


def _types_of_mounts() -> dict[int, str]:
    """Return the type of each mounted file system by the mount's number; nothing where /proc does not tell."""
    types: dict[int, str] = {}
    try:
        with open("/proc/self/mountinfo", "rb") as file:
            for line in file:
                # The number is the first field, and the type is the first one after a separator (proc(5)).
                before, _, after = line.partition(b" - ")
                types[int(before.split(b" ", 1)[0])] = after.split(b" ", 1)[0].decode("ascii", "replace")
    except (OSError, ValueError):
        return {}
    return types

# SPDX-License-Identifier: Apache-2.0
"""The command line: one module per verb, messages in the GNU manner, exit codes.

Knows arguments, files and terminals; nothing of how anything is computed.
"""

from __future__ import annotations

import sys
from typing import Final, NoReturn

from cfi2sframe import __version__
from cfi2sframe.errors import reason_of
from cfi2sframe.interrupts import keep_interrupts

PROGRAM: Final = "cfi2sframe"

EXIT_SUCCESS: Final = 0
EXIT_DIFFERENCE: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNUSABLE: Final = 3
EXIT_INCOMPLETE: Final = 4
#: Numbers that `signal` knows by name; this module is loaded before anything can be caught, so it loads little.
_SIGINT: Final = 2
_SIGPIPE: Final = 13

VERBS: Final = ("convert", "remove", "dump", "verify", "coverage", "size", "trace")

_USAGE: Final = f"""\
usage: {PROGRAM} [convert] IN -o OUT [OPTION]...
       {PROGRAM} [convert] (--in-place | --check) FILE... [OPTION]...
       {PROGRAM} remove IN (-o OUT | --in-place)
       {PROGRAM} dump FILE [OPTION]...
       {PROGRAM} verify IN [SECTION] [OPTION]...
       {PROGRAM} coverage IN... [OPTION]...
       {PROGRAM} size PATH... [OPTION]...
       {PROGRAM} trace (CORE | --pid N) [OPTION]...

Make SFrame sections from the DWARF CFI of finished ELF objects, executables and libraries.

verbs (a first argument that is none of them is convert's IN):
  convert    write the .sframe section that says what the file's .eh_frame says: its raw bytes,
             or a copy of the file with the section in it
  remove     take the .sframe section out of a file
  dump       print a .sframe section in the form of readelf --sframe
  verify     compare a .sframe section with the CFI at every PC
  coverage   say which functions SFrame can describe, and why not the others
  size       say what SFrame costs or would cost, for files, trees, archives and packages
  trace      print the stacks of a core file or a live process, as SFrame gives them

  -h, --help     this text; "{PROGRAM} VERB --help" for a verb's options
  --version      print the version

examples:
  {PROGRAM} /bin/ls -o ls.sframe
  {PROGRAM} in.o -o out.o
  {PROGRAM} --in-place program
  {PROGRAM} --in-place -r -j 4 --report report.jsonl debian/tmp
  {PROGRAM} dump --raw ls.sframe --section-address 0x30000
  {PROGRAM} verify /bin/ls
  {PROGRAM} coverage --json /usr/lib/x86_64-linux-gnu/libc.so.6
  {PROGRAM} trace core

exit status: 0 success; 1 verify found a difference, or --check would change a file; 2 usage;
3 a file cannot be used; 4 functions were left out and --strict or --min-coverage forbids it.
Of several files the worst counts: 3, 2, 4, 1, 0.
"""


def run() -> NoReturn:
    """Run the command line as a process: leave without taking down, one by one, the millions of records of a run."""
    import os

    status = EXIT_UNUSABLE
    try:
        keep_interrupts()
        status = main()
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        # The reader has left; that is its right.
        status = 128 + _SIGPIPE
    except OSError:
        # `main` has said what there was to say.
        status = status or EXIT_UNUSABLE
    except KeyboardInterrupt:
        # In an import, say, before anything has begun.
        os._exit(128 + _SIGINT)
    except Exception as error:  # noqa: BLE001 - the last line of defence; tests call `main`, and see what is raised
        status = EXIT_UNUSABLE
        try:
            sys.stderr.write(f"{PROGRAM}: {reason_of(error)}\n")
            sys.stderr.flush()
        except OSError:
            pass
    os._exit(status)


#: What a run has made: kept so that it need not be taken down before the process ends.
KEPT: Final[list[object]] = []


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    open_missing_streams()
    words = sys.argv[1:] if arguments is None else arguments
    if not words:
        sys.stderr.write(_USAGE)
        return EXIT_USAGE
    if words[0] in ("-h", "--help"):
        sys.stdout.write(_USAGE)
        return EXIT_SUCCESS
    if words[0] == "--version":
        sys.stdout.write(f"{PROGRAM} {__version__}\n")
        return EXIT_SUCCESS
    verb, rest = (words[0], words[1:]) if words[0] in VERBS else ("convert", words)
    from cfi2sframe.cli.common import run_verb

    return run_verb(verb, rest)


def open_missing_streams() -> None:
    """Stand in for streams that the caller has closed, before a file is given one of their descriptors."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open("/dev/null", mode, encoding="utf-8"))  # noqa: SIM115 - open as long as the process

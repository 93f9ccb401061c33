# SPDX-License-Identifier: Apache-2.0
"""The command line: one module per verb, messages in the GNU style, exit statuses."""

from __future__ import annotations

import sys
from typing import Final, NoReturn

from cfi2sframe import __version__
from cfi2sframe.cli.exit_status import EXIT_SUCCESS, EXIT_UNUSABLE, EXIT_USAGE, PROGRAM
from cfi2sframe.interrupts import keep_interrupts

#: Values of `signal.SIGINT` and `signal.SIGPIPE`. This module loads little, since nothing can be caught before it.
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
  convert    write an .sframe section with the stack trace information of the file's .eh_frame:
             its raw bytes, or a copy of the file with the section in it
  remove     take the .sframe section out of a file
  dump       print a .sframe section in the form of readelf --sframe
  verify     compare a .sframe section with the CFI at every PC
  coverage   list which functions SFrame can describe, and why not the others
  size       measure what SFrame costs or would cost, for files, trees, archives and packages
  trace      print the stacks of a core file or a live process, unwound by SFrame

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
    """Run the command line as a process: exit without freeing the millions of records of a run one by one."""
    import os

    status = EXIT_UNUSABLE
    try:
        keep_interrupts()
        status = main()
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        # The reader has closed the pipe, as it may.
        status = 128 + _SIGPIPE
    except OSError:
        # `main` has reported it.
        status = status or EXIT_UNUSABLE
    except KeyboardInterrupt:
        # It came before `main` could catch it, for example in an import.
        os._exit(128 + _SIGINT)
    except Exception as error:  # noqa: BLE001 - a user never sees a traceback; tests call `main`, which raises
        from cfi2sframe.errors import reason_of

        status = EXIT_UNUSABLE
        try:
            sys.stderr.write(f"{PROGRAM}: {reason_of(error)}\n")
            sys.stderr.flush()
        except OSError:
            pass
    os._exit(status)


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
    """Replace standard streams that the caller has closed, before a file gets one of their descriptors."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open("/dev/null", mode, encoding="utf-8"))  # noqa: SIM115 - open as long as the process

# SPDX-License-Identifier: Apache-2.0
"""Requests of a run to the operating system.

    guard         one limit for the time and the memory of a job
    batch         calls a function for many items, in copies of this process
    interrupts    ends the run on a signal, wherever the interpreter is
    demangle      readable names, by a program that may not be there

Nothing here knows ELF, CFI or SFrame.
"""

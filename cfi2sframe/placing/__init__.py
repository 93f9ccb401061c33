# SPDX-License-Identifier: Apache-2.0
"""Put a finished section into a copy of an ELF file, and remove it again. Knows nothing of what its bytes mean.

The doors are `linked` and `removal` for executables and shared libraries, and `objects` for relocatable objects.
Insertion into a linked file, in the order of the work:

    checks                   refuses what cannot be rewritten safely; a file that passes is a `LinkedFile`
    place                    decides where the section goes
    header_room, moving      make room for program headers, by moving sections that may move
    linked                   edits the file, and leaves a record of the original at its end (undo)

`observed` judges whether the result equals the original except for the section, and knows none of these steps: what
loaders read (`segments_view`, `loader_tables`) and what tools see (`tools_view`), as parsed by `pyelftools_view`.

`removal` restores the original by that record if it fits, and knows none of these steps but the first.
"""

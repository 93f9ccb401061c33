# SPDX-License-Identifier: Apache-2.0
"""Put a finished section into a copy of an ELF file, and remove it again. Knows nothing of what its bytes mean.

There are two doors: `linked` for executables and shared libraries, `objects` for relocatable objects.

Insertion into a linked file, in the order of the work:

    gate             refuses what cannot be rewritten safely; a file that passes is a `LinkedFile`
    place            where the section goes
    head             how its program headers get room: by moving sections that may move (movable, relocated,
                     note_addresses)
    insert           turns the placement into edits (section_indices), with a record of how to undo them (undo)
    edits            applies them, without copying the unchanged bytes
    reread           parses the result with pyelftools and compares it with the original (view, table_sizes)

Removal: `gate`, `remove`, `edits`, `reread`.
"""

# SPDX-License-Identifier: Apache-2.0
"""Put a finished section into a copy of an ELF file, and remove it again. Knows nothing of what its bytes mean.

Two doors: `linked` for executables and shared libraries, `objects` for relocatable objects. Into a linked file:

    gate             refuses what cannot be rewritten safely; a file that passes is a `LinkedFile`
    choose           tries one draft after the other: where the bytes and the program headers go
      room             slack after a segment, or a new segment
      header_room      space for more program headers, by moving small sections (movable, following_segments)
      table_at_end     or the program headers in the new segment
    insert           turns the draft into edits (section_table, section_indices)
    edits            applies them, without copying what stays
    reread           parses the result with independent code and compares it with the original

Out of it: `gate`, `remove` (the reverse of choose and insert), `edits`, `reread`. `loader_notes` knows the notes that
make a loader refuse a program.
"""

# SPDX-License-Identifier: Apache-2.0
"""Put a finished section into a copy of an ELF file, and remove it again. Knows nothing of what its bytes mean.

There are two doors: `linked` for executables and shared libraries, `objects` for relocatable objects.

Insertion into a linked file, in the order of the work:

    gate             refuses what cannot be rewritten safely; a file that passes is a `LinkedFile`
    choose           tries one draft after the other: where the section and the program headers go
      room             the section: slack after a segment, or a new segment (interpreter: not in ld.so)
      header_room      more program headers in place, by moving small sections (movable, following_segments, relocated)
      front_page       or on a page in front of a static program's first segment
      table_at_end     or all program headers in the new segment
    insert           turns the draft into edits (section_table, section_indices)
    edits            applies them, without copying the unchanged bytes
    reread           parses the result with independent code and compares it with the original

Removal: `gate`, `remove` (the reverse of choose and insert), `front_page`, `edits`, `reread`. `loader_notes` knows the
notes for which a loader may refuse a program, `note_addresses` those that may not move.
"""

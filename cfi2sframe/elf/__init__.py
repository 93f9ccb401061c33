# SPDX-License-Identifier: Apache-2.0
"""The only reader of ELF structure, except for that of the judge of rewritten files. The door is `load`.

In: a file, whatever its bytes are. Out: an `ElfImage` with headers, sections, segments, symbols and relocations, the
bytes of its CFI and of its SFrame section, all within the file. Nothing here knows what a CIE or an SFrame row is. The
judge (`placing/observed.py`) reads by pyelftools, so that no fault here can hide one of the writer.
"""

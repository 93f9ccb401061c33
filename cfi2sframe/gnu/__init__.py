# SPDX-License-Identifier: Apache-2.0
"""What GNU as and ld would have made of the same functions: a model of their SFrame sections, in bytes.

`directives` carries call frame instructions out as GNU as does, `rows` has its rows and their sizes, `assembler` makes
functions of programs, and `layout` makes sections of a file's functions. `layout.gnu_sections` is the door.
"""

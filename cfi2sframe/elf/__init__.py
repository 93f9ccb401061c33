# SPDX-License-Identifier: Apache-2.0
"""ELF: reading the structure of a file, and putting a section into a copy of it."""

# SPDX-License-Identifier: Apache-2.0
"""The only reader of ELF structure: headers, sections, segments, symbols, CFI bytes. The door is `load`."""

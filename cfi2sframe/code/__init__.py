# SPDX-License-Identifier: Apache-2.0
"""Rows from instructions, for code that no CFI covers. The door is `derive.derive`."""

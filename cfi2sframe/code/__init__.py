# SPDX-License-Identifier: Apache-2.0
"""Rows from the instructions of code that no CFI covers."""

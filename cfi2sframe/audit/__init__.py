# SPDX-License-Identifier: Apache-2.0
"""Contradictions between CFI and instructions. The door is `compare`.

In: the CFI of an image, with what it says of control flow (`flow`). Out: rows that contradict the instructions
(`agreement`), and the same as text for people (`findings`). Nothing is changed.
"""

# SPDX-License-Identifier: Apache-2.0
"""Contradictions between CFI and instructions. The door is `compare`.

In: the CFI of an image, and the control flow that follows from it (`flow`). Out: rows that contradict the instructions
(`agreement`), and the same as text for people (`findings`). Nothing is changed.
"""

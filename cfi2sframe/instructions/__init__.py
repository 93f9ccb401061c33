# SPDX-License-Identifier: Apache-2.0
"""The effects of instructions on a frame.

In: code, and where functions may begin. Out: rows of code without CFI (`derive`), and states at addresses for `audit`
and `stubs`. All use one machine (`machine` explains its proofs), with a table of effects for each ABI. Nothing here
depends on how rows are stored.
"""

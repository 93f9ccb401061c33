# SPDX-License-Identifier: Apache-2.0
"""What instructions do to a frame.

In: code, and where functions may begin. Out: rows of code without CFI (`derive`), and states at addresses for those who
compare or describe (`audit`, `stubs`). All ask one machine (`machine` says how it proves what it says), which has a
table of effects for each ABI. How rows are stored, nothing here knows.
"""

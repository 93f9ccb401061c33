# SPDX-License-Identifier: Apache-2.0
"""PLT stubs. The door is `scan`.

In: a linked file. Out: where its stubs are (`places`), and their rows, from their instructions (`frames`); blocks that
repeat become one PCMASK function. Nothing here knows the CFI.
"""

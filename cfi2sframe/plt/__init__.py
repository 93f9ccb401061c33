# SPDX-License-Identifier: Apache-2.0
"""PLT stubs: found in linked files, understood by their instructions, described by PCMASK functions.

Ranges of stubs (`find`) are cut into equal blocks (`blocks`), whose instructions (`decode`, and one module per
architecture) carry a stack state along their flow (`flow`). What comes out is held against the CFI that covers the
stubs (`reconcile`) and becomes SFrame functions (`scan`).
"""

# SPDX-License-Identifier: Apache-2.0
"""PLT stubs: where they are in a linked file, what their instructions do, and the rows of blocks that repeat."""

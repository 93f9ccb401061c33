# SPDX-License-Identifier: Apache-2.0
"""What instructions do to a frame: one machine, a table of effects for each ABI, and what is built on them."""

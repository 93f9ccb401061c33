# SPDX-License-Identifier: Apache-2.0
"""SFrame: the logical section, its layout, its bytes, and an independent way back from the bytes."""

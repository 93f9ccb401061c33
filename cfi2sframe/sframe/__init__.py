# SPDX-License-Identifier: Apache-2.0
"""The SFrame format: model, layout, encoder, and an independent decoder with look-up and dump."""

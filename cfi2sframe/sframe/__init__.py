# SPDX-License-Identifier: Apache-2.0
"""The SFrame format, versions 1 to 3: model, layout, encoder, and an independent reader with dump."""

# SPDX-License-Identifier: Apache-2.0
"""The SFrame format, versions 1 to 3: model, writer, and an independent reader with dump."""

# SPDX-License-Identifier: Apache-2.0
"""Numbers of the formats, under their specifications' names."""

# SPDX-License-Identifier: Apache-2.0
"""The table of functions that Go's linker writes (`.gopclntab`, kept by strip), as call frame information."""

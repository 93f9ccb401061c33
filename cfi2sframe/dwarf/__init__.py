# SPDX-License-Identifier: Apache-2.0
"""DWARF call frame information: from section bytes to CIEs and FDEs, and from those to rows."""

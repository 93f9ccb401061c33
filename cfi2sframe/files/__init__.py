# SPDX-License-Identifier: Apache-2.0
"""The files that a user names: find the ELF files among them, open them, write new ones."""

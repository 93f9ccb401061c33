# SPDX-License-Identifier: Apache-2.0
"""Where CFI and instructions contradict each other: follows each FDE's instructions, and compares states with rows."""

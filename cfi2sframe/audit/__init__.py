# SPDX-License-Identifier: Apache-2.0
"""CFI held to the instructions that it describes. The door is `auditing.audit`."""

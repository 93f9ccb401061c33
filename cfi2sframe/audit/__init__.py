# SPDX-License-Identifier: Apache-2.0
"""Where CFI and instructions contradict one another: functions are followed from their FDEs, and states compared."""

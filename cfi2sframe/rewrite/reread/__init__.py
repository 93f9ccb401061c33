# SPDX-License-Identifier: Apache-2.0
"""Read a rewritten file back and compare it with the original: `check` is the door.

No module here imports what plans or writes; `view` says what is shared all the same, and why that is safe.
"""

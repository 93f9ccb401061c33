# SPDX-License-Identifier: Apache-2.0
"""Read a rewritten file back and compare it with the original. The door is `check`.

No module here imports what plans or writes; `view` lists what is shared nevertheless, and why that is safe.
"""

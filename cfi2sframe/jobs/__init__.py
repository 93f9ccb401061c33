# SPDX-License-Identifier: Apache-2.0
"""Files that get their section, or lose it.

In: a `Job`, which has a file and what the user wants of it. Out: an `Outcome`, which has what became of it and why.
Both are immutable records that can be pickled: the bytes do not depend on where a job runs. `run_job` is the one flow
of a single file and of each of many. Nothing here knows a terminal.
"""

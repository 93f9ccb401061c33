# SPDX-License-Identifier: Apache-2.0
"""Put the section into files, or remove it.

In: a `Job`, a file and what to do with it. Out: an `Outcome`, the result and its reason. Both can be pickled, so a job
may run in any process. `run_job` serves a single file and each of many. Nothing here knows a terminal.
"""

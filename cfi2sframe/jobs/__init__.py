# SPDX-License-Identifier: Apache-2.0
"""Put the section into files, or remove it.

In: a `Job`, a file and what to do with it. Out: an `Outcome`, the result and why. Both can be pickled, so a job may
run in any process. `run_job` is the one flow, for a single file and for each of many. Nothing here knows a terminal.
"""

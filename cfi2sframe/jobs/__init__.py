# SPDX-License-Identifier: Apache-2.0
"""Files that get their section, or lose it: a work list, `run_job` for each file, and what runs it for many.

Jobs and outcomes are immutable records that can be pickled; the bytes do not depend on where a job runs.
"""

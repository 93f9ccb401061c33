# SPDX-License-Identifier: Apache-2.0
"""What the processes of a pool start with: all that a conversion loads, and deaf to the keyboard until they are set up.

Loaded by the fork server alone: loading it changes how the process takes an interrupt.
"""

from __future__ import annotations

import signal

from cfi2sframe import api, emit, pipeline
from cfi2sframe.batch import pool
from cfi2sframe.elf import embed, relocatable

__all__ = ["api", "embed", "emit", "pipeline", "pool", "relocatable"]

signal.signal(signal.SIGINT, signal.SIG_IGN)

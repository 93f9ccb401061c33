# SPDX-License-Identifier: Apache-2.0
"""The SFrame format, versions 1 to 3.

In: functions with rows of CFA, RA and FP. Out: bytes, and functions again. `write` decides every size and byte; `read`
shares no code with it and returns the same records (`model`), so each checks the other; `ranges` cuts and joins
functions where that saves bytes (-O2). Nothing here knows DWARF or ELF.
"""

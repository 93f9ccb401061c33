# SPDX-License-Identifier: Apache-2.0
"""What SFrame sections cost: `measure` fills `records` from a file, `sources` runs it on many, `totals` makes reports.

`tables` arranges reports as tables, which most formats of `render/` show.
"""

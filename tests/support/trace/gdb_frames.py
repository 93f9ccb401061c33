# SPDX-License-Identifier: Apache-2.0
"""A script for gdb's own Python: print the frames of every thread as JSON, inlined ones left out.

Run as `gdb -batch ... -x gdb_frames.py`; the one line of output that starts with FRAMES is for `judges`.
"""

import json

import gdb

LIMIT = 4096


def chain() -> dict[str, object]:
    """Return the frames of the selected thread, innermost first, and gdb's reason for the end."""
    pcs: list[int] = []
    sps: list[int] = []
    frame = gdb.newest_frame()
    reason = "limit"
    while len(pcs) < LIMIT:
        if frame.type() != gdb.INLINE_FRAME:
            pcs.append(frame.pc())
            sps.append(int(frame.read_register("sp")) & 0xFFFF_FFFF_FFFF_FFFF)
        try:
            older = frame.older()
        except gdb.error as error:
            reason = str(error)
            break
        if older is None:
            reason = gdb.frame_stop_reason_string(frame.unwind_stop_reason())
            break
        frame = older
    return {"id": gdb.selected_thread().ptid[1], "pcs": pcs, "sps": sps, "reason": reason}


def main() -> None:
    """Print the frames of all threads."""
    found = []
    for thread in gdb.selected_inferior().threads():
        thread.switch()
        found.append(chain())
    gdb.write("FRAMES " + json.dumps(found) + "\n")


main()

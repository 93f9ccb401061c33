# SPDX-License-Identifier: Apache-2.0
"""PLT stubs: found in linked files, understood by their instructions, described by PCMASK functions.

The door is `scan_stubs.scan_stubs`. In the order of the work:

- `stub_ranges`, `without_sections`: where stubs are, by section names or by what dynamic relocations lead to.
- `block_runs`: a range of stubs as runs of equal blocks.
- `block_decoder` with `amd64`, `aarch64`, `s390x`: instructions and their effects (capstone).
- `flow`, `first_block`: the frame at every instruction, by following the flow from the entries.
- `cfi_agreement`, `sp_distance`: the frames against the CFI that covers the stubs, evaluated to distances from SP.
- `scan_records`, `stub_reasons`: what is returned to others; `stub_model`: what only these modules share.
"""

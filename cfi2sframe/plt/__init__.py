# SPDX-License-Identifier: Apache-2.0
"""PLT stubs: found in linked files, analysed instruction by instruction, and described by PCMASK functions.

The door is `scan_stubs.scan_stubs`. In the order of the work:

- `stub_ranges`, `without_sections`: find ranges of stubs, by section names or through dynamic relocations.
- `block_runs`: cuts a range into runs of equal blocks.
- `block_decoder`: decodes instructions.
- `amd64`, `aarch64`, `s390x`: which instructions stubs have. `stub_effects`: what those do to the frame, from `code`.
- `flow`, `first_block`: compute the frame at every instruction, by following the flow from the entries.
- `cfi_agreement`, `sp_distance`: compare the frames with the CFI of the stubs, evaluated to distances from SP.
- `scan_records`, `stub_reasons`: records for other rooms; `stub_model`: records that only these modules share.
"""

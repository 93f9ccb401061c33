# SPDX-License-Identifier: Apache-2.0
"""Numbers of perf.data: perf_event_open(2), and perf's perf.data-file-format.txt."""

from typing import Final

#: At the start of a file, in the byte order of its machine.
PERF_MAGICS: Final = (b"PERFILE2", b"2ELIFREP")

PERF_RECORD_MMAP: Final = 1
PERF_RECORD_LOST: Final = 2
PERF_RECORD_COMM: Final = 3
PERF_RECORD_EXIT: Final = 4
PERF_RECORD_FORK: Final = 7
PERF_RECORD_SAMPLE: Final = 9
PERF_RECORD_MMAP2: Final = 10
PERF_RECORD_LOST_SAMPLES: Final = 13
# Those of perf itself.
PERF_RECORD_HEADER_ATTR: Final = 64
PERF_RECORD_HEADER_BUILD_ID: Final = 67
PERF_RECORD_FINISHED_ROUND: Final = 68
PERF_RECORD_AUXTRACE: Final = 71
PERF_RECORD_HEADER_FEATURE: Final = 80
PERF_RECORD_COMPRESSED: Final = 81
PERF_RECORD_COMPRESSED2: Final = 83

PERF_RECORD_MISC_CPUMODE_MASK: Final = 7
PERF_RECORD_MISC_USER: Final = 2
#: MMAP: the mapping is not executable.
PERF_RECORD_MISC_MMAP_DATA: Final = 1 << 13
#: COMM: by an exec.
PERF_RECORD_MISC_COMM_EXEC: Final = 1 << 13
PERF_RECORD_MISC_MMAP_BUILD_ID: Final = 1 << 14
#: A build-id whose size is stored.
PERF_RECORD_MISC_BUILD_ID_SIZE: Final = 1 << 15
PROT_EXEC: Final = 4

PERF_SAMPLE_IP: Final = 1 << 0
PERF_SAMPLE_TID: Final = 1 << 1
PERF_SAMPLE_TIME: Final = 1 << 2
PERF_SAMPLE_ADDR: Final = 1 << 3
PERF_SAMPLE_READ: Final = 1 << 4
PERF_SAMPLE_CALLCHAIN: Final = 1 << 5
PERF_SAMPLE_ID: Final = 1 << 6
PERF_SAMPLE_CPU: Final = 1 << 7
PERF_SAMPLE_PERIOD: Final = 1 << 8
PERF_SAMPLE_STREAM_ID: Final = 1 << 9
PERF_SAMPLE_RAW: Final = 1 << 10
PERF_SAMPLE_BRANCH_STACK: Final = 1 << 11
PERF_SAMPLE_REGS_USER: Final = 1 << 12
PERF_SAMPLE_STACK_USER: Final = 1 << 13
PERF_SAMPLE_IDENTIFIER: Final = 1 << 16

#: TOTAL_TIME_ENABLED and TOTAL_TIME_RUNNING, which add a word each to what is read.
PERF_FORMAT_TIMES: Final = 1 << 0 | 1 << 1
#: ID and LOST, which add a word each to every value.
PERF_FORMAT_VALUES: Final = 1 << 2 | 1 << 4
PERF_FORMAT_GROUP: Final = 1 << 3

PERF_SAMPLE_BRANCH_HW_INDEX: Final = 1 << 17
PERF_SAMPLE_BRANCH_COUNTERS: Final = 1 << 19

#: In a chain of calls, what follows is the user's.
PERF_CONTEXT_USER: Final = (1 << 64) - 512
#: From here on, an entry of a chain names what follows.
PERF_CONTEXT_MAX: Final = (1 << 64) - 4095

PERF_SAMPLE_REGS_ABI_64: Final = 2

# Features of the file's header.
HEADER_BUILD_ID: Final = 2
HEADER_OSRELEASE: Final = 4
HEADER_ARCH: Final = 6
HEADER_EVENT_DESC: Final = 12

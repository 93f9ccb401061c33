# SPDX-License-Identifier: Apache-2.0
"""A FIFO that tells whether somebody has opened it."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def waiting_writer(fifo: Path) -> Iterator[threading.Event]:
    """Make a FIFO with a writer, and give what is set once somebody has opened it to read."""
    os.mkfifo(fifo)
    path = os.open(fifo, os.O_PATH)
    starts, released = threading.Event(), threading.Event()

    def write() -> None:
        starts.set()
        descriptor = os.open(f"/proc/self/fd/{path}", os.O_WRONLY)
        released.set()
        os.close(descriptor)

    thread = threading.Thread(target=write)
    thread.start()
    assert starts.wait(10)
    # Nothing tells that it waits now.
    time.sleep(0.05)
    try:
        yield released
    finally:
        reader = os.open(f"/proc/self/fd/{path}", os.O_RDONLY | os.O_NONBLOCK)
        assert released.wait(10)
        thread.join()
        os.close(reader)
        os.close(path)

# SPDX-License-Identifier: Apache-2.0
"""`python -m cfi2sframe`."""

from cfi2sframe.cli import run

if __name__ == "__main__":
    run()

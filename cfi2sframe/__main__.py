# SPDX-License-Identifier: Apache-2.0
"""`python -m cfi2sframe`."""

import sys

from cfi2sframe.cli import main

sys.exit(main())

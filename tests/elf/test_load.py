# SPDX-License-Identifier: Apache-2.0
"""What loading asks of the interpreter."""

import subprocess
import sys
from pathlib import Path

WITHOUT_NAME = """
import os
del os.O_PATH
from cfi2sframe.cli import main
raise SystemExit(main(["/bin/true", "-o", "made"]))
"""


def test_an_interpreter_without_the_name_of_o_path(tmp_path: Path) -> None:
    """PyPy 7.3 is one."""
    result = subprocess.run([sys.executable, "-c", WITHOUT_NAME], cwd=tmp_path, check=False, capture_output=True)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "made").stat().st_size > 0

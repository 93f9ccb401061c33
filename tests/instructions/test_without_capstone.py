# SPDX-License-Identifier: Apache-2.0
"""What happens where capstone, the one dependency with native code, cannot be had."""

from pathlib import Path

from tests.support.cli import run_process


def without_capstone(tmp_path: Path) -> dict[str, str]:
    """Return variables that hide an installed capstone."""
    from tests.support.cli import ROOT

    (tmp_path / "capstone").mkdir()
    (tmp_path / "capstone" / "__init__.py").write_text("raise ImportError('hidden')\n")
    return {"PYTHONPATH": f"{tmp_path}:{ROOT}"}


def test_stubs_are_refused_with_a_reason(tmp_path: Path) -> None:
    result = run_process("/bin/ls", "-o", tmp_path / "ls.sframe", **without_capstone(tmp_path))
    assert (result.returncode, result.stdout) == (3, "")
    assert result.stderr == (
        "cfi2sframe: /bin/ls: error: PLT stubs are described with the Python package capstone, which cannot be loaded "
        "(Debian: python3-capstone)\n"
    )

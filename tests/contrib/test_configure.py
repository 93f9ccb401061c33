# SPDX-License-Identifier: Apache-2.0
"""Configure scripts find with the wrappers what they find without: they take a message for a failure."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.contrib.support import environment, run
from tests.support.needs import need

pytestmark = pytest.mark.slow

#: Where Debian's libtool has its parts; they are used directly, so that automake is not needed.
PARTS = ("libtool", "ltoptions", "ltsugar", "ltversion", "lt~obsolete")
MACROS = [Path("/usr/share/aclocal") / f"{part}.m4" for part in PARTS]
AUXILIARY = Path("/usr/share/libtool/build-aux")
CONFIGURE = """\
AC_INIT([words], [1])
AC_CONFIG_AUX_DIR([aux])
AC_PROG_CC
LT_INIT
AC_CHECK_LIB([m], [cos])
AC_CHECK_FUNCS([backtrace no_such_function])
AC_OUTPUT
"""
MESON = """\
project('words', 'c')
cc = meson.get_compiler('c')
foreach word : ['-static', '-Wl,--gc-sections', '-Wl,--no-such-option', '-pie']
  message(word, cc.has_link_argument(word))
endforeach
message('static', cc.links('int main(void) { return 0; }', args: '-static'))
message('backtrace', cc.has_function('backtrace'), cc.has_function('no_such_function'))
message('m', cc.find_library('m').found(), cc.has_argument('-Wa,--noexecstack'))
"""


@pytest.fixture
def folder(tmp_path: Path, programs: Path) -> Path:
    """A folder for `-B` with all wrappers."""
    need("gcc", "as", "ld")
    (tmp_path / "sframe").mkdir()
    for name in ("as", "ld"):
        (tmp_path / "sframe" / name).symlink_to(programs / f"cfi2sframe-{name}")
    return tmp_path / "sframe"


def test_libtool(tmp_path: Path, programs: Path, folder: Path) -> None:
    """It takes a static link that prints something for one that fails; parts of libc cannot be described."""
    need("autoconf", "make")
    if not (AUXILIARY.exists() and all(path.exists() for path in MACROS)):
        pytest.skip("libtool is not here: apt-get install libtool")
    shutil.copytree(AUXILIARY, tmp_path / "aux")
    (tmp_path / "configure.ac").write_text(CONFIGURE)
    (tmp_path / "aclocal.m4").write_text("".join(path.read_text() for path in MACROS))
    run("autoconf", cwd=tmp_path)
    log = tmp_path / "log"
    env = environment(programs, CFI2SFRAME_LOG=str(log))
    found = []
    for name, option in (("plain", ""), ("wrapped", f" -B{folder}")):
        (tmp_path / name).mkdir()
        run("../configure", "--cache-file=cache", f"CC=gcc{option}", cwd=tmp_path / name, env=env)
        text = (tmp_path / name / "cache").read_text()
        # How the tools are called is what differs.
        lines = text.replace(option, "").replace("'gcc'", "gcc").splitlines()
        found.append([line for line in lines if not line.startswith(("lt_cv_path_LD", "#"))])
    assert found[1] == found[0]
    assert "lt_cv_prog_compiler_static_works=${lt_cv_prog_compiler_static_works=yes}" in found[1]
    assert log.read_text().count("info: SFrame version") > 10


def test_meson(tmp_path: Path, programs: Path, folder: Path) -> None:
    need("meson", "ninja")
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "meson.build").write_text(MESON)
    found = []
    for name, option in (("plain", ""), ("wrapped", f" -B{folder}")):
        env = environment(programs, CC=f"gcc{option}")
        said = run("meson", "setup", tmp_path / name, tmp_path / "words", env=env).out
        found.append(re.findall(r"^Message: .*", said, re.MULTILINE))
    assert found[1] == found[0]
    assert len(found[0]) == 7

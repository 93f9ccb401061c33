# SPDX-License-Identifier: Apache-2.0
"""Tables of jumps on s390x, as compilers write them: all of their targets are found, and agree with the CFI."""

from pathlib import Path
from typing import Final

import pytest

from cfi2sframe import load
from cfi2sframe.audit.compare import audit
from tests.support.needs import need, run
from tests.support.oracle.targets import S390

pytestmark = pytest.mark.oracle

#: Switches on numbers of all sizes, on memory, on some bits, in a loop; calls by pointers follow tables of jumps.
SOURCE: Final = """
extern void a(int);
extern long b(long);
#define CASES                                                                                                         \\
  case 0: return b(y);                                                                                                \\
  case 1: a(3); return y;                                                                                             \\
  case 2: return y * 7;                                                                                               \\
  case 3: return b(9) + 1;                                                                                            \\
  case 4: return 17;                                                                                                  \\
  case 5: a(9); return 44;                                                                                            \\
  case 6: a(1); return y + 9;                                                                                         \\
  case 7: return b(b(y));
long on_unsigned(unsigned x, long y) { switch (x) { CASES } return 0; }
long on_long(long x, long y) { switch (x) { CASES } return 1; }
long on_int(int x, long y) { switch (x + 3) { CASES } return 2; }
long on_bits(unsigned char x, long y) { switch (x & 7) { CASES } return 3; }
long on_memory(unsigned short *p, long y) { switch (p[1]) { CASES } return 4; }
struct list { long number; long (*call)(long); };
long in_loop(unsigned char *p, long y, long (*call)(long), struct list *list) {
  for (;;) {
    switch (*p++) {
    case 0: return y;
    case 1: y += call(3); break;
    case 2: y *= list[y ^ 5].call(7); break;
    case 3: y -= b(9); break;
    case 4: y ^= 17; break;
    case 5: a(y); break;
    case 6: y = ~y; break;
    case 99: y /= 3; break;
    default: y = call(y);
    }
    y += call(y);
  }
}
"""
CALLEES: Final = "long last; void a(int x) { last = x; } long b(long x) { return x * 3; }"
OPTIONS: Final = ("-O2 -fPIC", "-O2 -fno-pic", "-O2 -march=z13", "-O0", "-Os -fPIC")


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_all_targets_of_tables_are_found(compiler: str, options: str, tmp_path: Path) -> None:
    gcc = S390.compiler
    command = [gcc] if compiler == "gcc" else [need("clang"), "--target=s390x-linux-gnu"]
    objects = []
    for name, text in (("tables", SOURCE), ("callees", CALLEES)):
        (tmp_path / f"{name}.c").write_text(text)
        objects.append(tmp_path / f"{name}.o")
        flags = [*options.split(), "-fasynchronous-unwind-tables", "-c", "-o"]
        run(*command, *flags, objects[-1], tmp_path / f"{name}.c")
    run(gcc, "-nostdlib", "-no-pie", "-Wl,-e,0", "-o", tmp_path / "linked", *objects)
    found = audit(load(tmp_path / "linked"))
    assert found.not_compared == ()
    if compiler == "gcc":
        assert found.findings == ()
    # Clang has no CFI for epilogues: after LMG has restored SP, the CFA still counts from the old one.
    assert {finding.code_rule for finding in found.findings} <= {"r15+160"}

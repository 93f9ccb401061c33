#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Meson's checks get the same answers, and its project is built.
set -eu

cat > meson.build << 'MESON'
project('trial', 'c', 'cpp', default_options: ['buildtype=debugoptimized'])
cc = meson.get_compiler('c')
cpp = meson.get_compiler('cpp')
foreach flags : [[], ['-static'], ['-pie', '-fPIE'], ['-no-pie'], ['-static-pie', '-fPIE']]
  assert(cc.links('int main(void) { return 0; }', args: flags, name: 'C links with ' + ' '.join(flags)))
  assert(cpp.links('#include <string>\nint main() { return std::string("").size(); }', args: flags, name: 'C++ links with ' + ' '.join(flags)))
endforeach
foreach argument : ['-Wl,-z,relro', '-Wl,--as-needed', '-Wl,--gc-sections']
  assert(cc.has_link_argument(argument))
endforeach
assert(cc.has_function('clock_gettime'))
assert(cc.has_function('reallocarray', prefix: '#define _GNU_SOURCE\n#include <stdlib.h>'))
assert(not cc.has_function('no_such_function'))
assert(cc.run('int main(void) { return 7; }', name: 'runs').returncode() == 7)
assert(cc.sizeof('long') > 0)
maths = cc.find_library('m')
loading = cc.find_library('dl')
threads = dependency('threads')
cc.find_library('nosuchlibrary', required: false)
library = both_libraries('words', 'words.c')
program = executable('program', 'main.c', link_with: library, dependencies: [maths, loading, threads])
test('program', program)
test('static', executable('static', 'main.c', link_with: library.get_static_lib(), link_args: '-static', dependencies: maths))
MESON
cat > words.c << 'C'
int words(const char *text) { int count = 0; for (; *text; text++) count += *text == ' '; return count + 1; }
C
cat > main.c << 'C'
#include <math.h>
int words(const char *);
int main(int argc, char **argv) { (void)argv; return words("a b c") != 3 || sqrt(argc * 4.0) != 2.0; }
C
meson setup build
ninja -C build > built 2>&1 || { cat built; exit 1; }
if grep -E '(warning|error|ld): ' built; then exit 1; fi
ninja -C build test > tested 2>&1 || { cat tested; exit 1; }
grep -E '^(Ok|Fail|Expected Fail|Timeout):' tested
# What a link printed is here, too.
sed -n '/^Running compile/,/^---/p' build/meson-logs/meson-log.txt | grep -c 'ld: ' || true

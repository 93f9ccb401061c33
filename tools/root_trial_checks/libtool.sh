#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What configure and libtool find out is the same, and they build shared and static libraries.
set -eu

cat > configure.ac << 'AC'
AC_INIT([trial], [1.0])
AC_CONFIG_MACRO_DIRS([m4])
AM_INIT_AUTOMAKE([foreign subdir-objects])
AC_CONFIG_HEADERS([config.h])
AC_PROG_CC
AC_PROG_CXX
AM_PROG_AR
LT_INIT
AC_CHECK_LIB([m], [cos])
AC_SEARCH_LIBS([pthread_create], [pthread])
AC_CHECK_FUNCS([backtrace clock_gettime no_such_function])
AC_CHECK_HEADERS([execinfo.h no_such_header.h])
AC_RUN_IFELSE([AC_LANG_PROGRAM([], [return 0;])], [AC_MSG_NOTICE([programs run])])
AC_CONFIG_FILES([Makefile])
AC_OUTPUT
AC
cat > Makefile.am << 'AM'
ACLOCAL_AMFLAGS = -I m4
lib_LTLIBRARIES = libwords.la
libwords_la_SOURCES = words.c
check_PROGRAMS = shared static all-static
TESTS = $(check_PROGRAMS)
shared_SOURCES = main.c
shared_LDADD = libwords.la
static_SOURCES = main.c
static_LDFLAGS = -static
static_LDADD = libwords.la
all_static_SOURCES = static.cc
all_static_LDFLAGS = -all-static
all_static_LDADD = libwords.la
AM
mkdir m4
cat > words.c << 'C'
int words(const char *text) { int count = 0; for (; *text; text++) count += *text == ' '; return count + 1; }
C
cat > main.c << 'C'
int words(const char *);
int main(void) { return words("a b c") != 3; }
C
cat > static.cc << 'C'
extern "C" int words(const char *);
int main() { return words("a b c") != 3; }
C
autoreconf --install > reconf 2>&1 || { cat reconf; exit 1; }
./configure
./libtool --config
cat config.h
make > built 2>&1 || { cat built; exit 1; }
make check > tested 2>&1 || { cat tested; exit 1; }
if grep -E 'ld: |[Ww]arning: ' built tested; then exit 1; fi
grep -E '^# (TOTAL|PASS|FAIL|ERROR)' tested
make install DESTDIR="$PWD/installed" > /dev/null 2>&1
find installed -name 'libwords*' | LC_ALL=C sort

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every program says which version it is.
set -eu

is_elf() {
  [ -f "$1" ] && [ ! -L "$1" ] && [ "$(head -c 4 "$1" | tail -c 3)" = ELF ]
}

for program in /usr/bin/* /usr/sbin/*; do
  is_elf "$program" || continue
  case ${program##*/} in
    # They do not look at their arguments, or wait for a terminal.
    killall5 | sulogin | agetty | getty | login | su) continue ;;
  esac
  status=0
  timeout 20 "$program" --version < /dev/null > out 2>&1 || status=$?
  echo "$program: $status"
  cat out
done

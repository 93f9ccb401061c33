#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes program.data, and the program that it is of below root/: needs gcc for AMD64, and the right to record.
set -eu
cd "$(dirname "$0")"
work=/var/tmp/cfi2sframe-recording
trap 'rm -rf "$work"' EXIT
mkdir -p "$work" "root$work"
gcc -O1 -fomit-frame-pointer -ffreestanding -fno-stack-protector -fcf-protection=none -nostdlib -static -Wl,--build-id \
  -Wl,-z,max-page-size=4096 -o "$work/program" program.c
cp "$work/program" "root$work/program"
perf record -q -F 99 -e cpu-clock:u --call-graph dwarf,4096 -o program.data "$work/program"

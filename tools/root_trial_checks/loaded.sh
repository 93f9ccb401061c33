#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Libraries that programs load while they run: NSS, character sets, modules of Perl and Python, codecs of tar.
set -eu

getent passwd root
printf 'gr\303\274n\n' | iconv -f UTF-8 -t UTF-16LE | iconv -f UTF-16LE -t LATIN1 | od -c
ldconfig -p | wc -l
perl -MPOSIX -MSocket -MEncode -MStorable -MDigest::SHA=sha256_hex -e 'print POSIX::floor(2.5), sha256_hex("x"), "\n"; eval { die "caught\n" }; print $@'
python3 - << 'PYTHON'
import bz2, ctypes, decimal, hashlib, json, lzma, sqlite3, ssl, threading, zlib

compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int))
numbers = (ctypes.c_int * 5)(3, 1, 2, 5, 4)
ctypes.CDLL(None).qsort(numbers, 5, 4, compare(lambda a, b: a[0] - b[0]))
print(list(numbers), sqlite3.connect(":memory:").execute("select 6 * 7").fetchone(), ssl.OPENSSL_VERSION)
for codec in (bz2, lzma, zlib):
    assert codec.decompress(codec.compress(b"x" * 100000)) == b"x" * 100000
done = []
threads = [threading.Thread(target=done.append, args=(number,)) for number in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(sorted(done), decimal.Decimal(1) / 7, hashlib.sha512(json.dumps({"a": 1}).encode()).hexdigest())
PYTHON
for codec in gzip bzip2 xz zstd; do
  command -v "$codec" > /dev/null || continue
  tar --create --file x.tar --use-compress-program "$codec" --directory /usr/share perl5
  tar --list --file x.tar | LC_ALL=C sort | sha256sum
done

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# apt and dpkg install, verify, configure, remove, and build packages.
set -eu

apt-get -qq check
apt-get -qq --yes --no-install-recommends install ca-certificates hello openssl tree
hello
tree --version
printf x | openssl dgst -sha256
dpkg --verify hello tree openssl
apt-get -qq --yes purge hello openssl tree
dpkg --audit
mkdir -p package/DEBIAN package/usr/share/trial
printf 'Package: trial\nVersion: 1\nArchitecture: all\nMaintainer: A <a@example.invalid>\nDescription: trial\n' > package/DEBIAN/control
date -u -d @0 > package/usr/share/trial/file
for compression in gzip xz zstd; do
  dpkg-deb -Z "$compression" --root-owner-group --build package trial.deb > /dev/null
  dpkg --install trial.deb
  dpkg --purge trial
done

# SPDX-License-Identifier: Apache-2.0
# A sequence add-on for dh: installed as Debian/Debhelper/Sequence/sframe.pm, it provides "dh --with sframe".
use strict;
use warnings;
use Debian::Debhelper::Dh_Lib;

# After dh_strip, which splits the debug information off the file as it was linked.
insert_after('dh_strip', 'dh_sframe');

1;

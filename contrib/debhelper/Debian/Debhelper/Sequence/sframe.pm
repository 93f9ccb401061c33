# SPDX-License-Identifier: Apache-2.0
# A sequence add-on for dh: installed as Debian/Debhelper/Sequence/sframe.pm, it provides "dh --with sframe".
use strict;
use warnings;
use Debian::Debhelper::Dh_Lib;

# Before dh_strip: gdb compares the sections of a file with those of the file that its debug information is split off to.
insert_before('dh_strip', 'dh_sframe');

1;

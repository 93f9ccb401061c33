# SPDX-License-Identifier: Apache-2.0
# A sequence add-on for dh: installed as Debian/Debhelper/Sequence/sframe.pm, it makes "dh --with sframe" known.
use strict;
use warnings;
use Debian::Debhelper::Dh_Lib;

# Behind dh_strip: the debug information goes into its own file first, as the compiler made it.
insert_after('dh_strip', 'dh_sframe');

1;

# SPDX-License-Identifier: Apache-2.0
"""The files that a user names.

In: names of files, directories and lists. Out: each file once (`source`, `find`), also those in archives (`archive`),
and new ones (`write`): a file is written next to its place, and renamed once it is whole. Nothing here knows what they
are for.
"""

# SPDX-License-Identifier: Apache-2.0
"""Put the section into files, or remove it.

In: a `Job`, the paths of a file and the function that makes its new bytes. Out: an `Outcome`, the result and its
reason. Both can be pickled, so a job may run in any process. Nothing here knows a terminal.

- `records`: a `Request` to convert, the `Product` of a file, its `Outcome`
- `job`: one way for every file, which knows nothing of requests
- `products`: the two kinds of job, and the product of each
- `conversion`, `decision`, `stamps`: a section, whether it replaces the one that the file has, and whether it is needed
"""

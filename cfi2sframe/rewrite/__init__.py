# SPDX-License-Identifier: Apache-2.0
"""Parts of `cfi2sframe.rewrite.linked`: a section into a linked file, and out of it again."""

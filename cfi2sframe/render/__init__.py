# SPDX-License-Identifier: Apache-2.0
"""Renderers: the records of `report/` as terminal tables, text, CSV, JSON, Markdown and HTML. They compute nothing."""

# SPDX-License-Identifier: Apache-2.0
"""Accounts of conversions as records, and those records as text and data."""

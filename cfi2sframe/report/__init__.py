# SPDX-License-Identifier: Apache-2.0
"""Accounts of conversions (`coverage`) and of section sizes (`size`): records, and computations on them."""

# SPDX-License-Identifier: Apache-2.0
"""Reports: accounts of conversions (`coverage`), of sizes (`size`) and of audits, and one renderer for each format."""

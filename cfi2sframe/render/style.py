# SPDX-License-Identifier: Apache-2.0
"""The style sheet of HTML reports: light and dark, from a phone's width up, and for paper."""

from __future__ import annotations

from typing import Final

STYLE: Final = """
:root {
  color-scheme: light dark;
  --page: #fbfbfa; --card: #ffffff; --text: #1c1f24; --soft: #5b6370; --line: #dfe2e6; --head: #f1f3f5;
  --cfi: #8d96a3; --hdr: #c3c9d1; --v1: #a9cbe8; --v2: #5a9bd0; --v3: #14589b;
  --table: #14589b; --attributes: #d9822b; --rows: #5a9bd0; --gnu: #b4637a; --good: #1e7a3c; --bad: #a85400;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14171b; --card: #1c2026; --text: #e6e8eb; --soft: #a0a8b3; --line: #343a43; --head: #242932;
    --cfi: #78818e; --hdr: #525a66; --v1: #2f6596; --v2: #4b93cf; --v3: #9ccbf3;
    --table: #9ccbf3; --attributes: #e8a35a; --rows: #3f7fb6; --gnu: #d98aa0; --good: #6cc58a; --bad: #e5a45c;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--text);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif;
}
.skip { position: absolute; left: -100vw; }
.skip:focus { position: static; display: block; padding: .5rem 1rem; }
header, main, footer { max-width: 72rem; margin: 0 auto; padding: 0 1.25rem; }
header { padding-top: 2.25rem; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 .35rem; letter-spacing: -.01em; }
h2 { font-size: 1.2rem; line-height: 1.3; margin: 0 0 .25rem; }
p { margin: 0 0 .75rem; max-width: 46rem; }
.soft, .note { color: var(--soft); }
.note { font-size: .875rem; margin: .5rem 0 0; }
section { margin: 1.5rem 0; padding: 1.25rem; background: var(--card); border: 1px solid var(--line);
  border-radius: .6rem; }
.cards { display: grid; gap: .75rem; grid-template-columns: repeat(auto-fit, minmax(10.5rem, 1fr));
  margin: 1.25rem 0 0; padding: 0; }
.cards div { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; padding: .85rem 1rem; }
.cards dt { color: var(--soft); font-size: .875rem; }
.cards dd { margin: 0; }
.cards .value { font-size: 1.5rem; line-height: 1.25; font-weight: 650; font-variant-numeric: tabular-nums; }
.cards .more { font-size: .875rem; color: var(--soft); }
svg { display: block; width: 100%; margin-top: .5rem; overflow: visible; }
svg text { fill: var(--text); font-size: 13px; font-variant-numeric: tabular-nums; }
svg .soft { fill: var(--soft); font-size: 12px; }
svg .name { font-weight: 600; }
svg .axis { stroke: var(--line); stroke-width: 1; }
svg .one { stroke: var(--soft); stroke-width: 1; stroke-dasharray: 4 3; }
.cfi { fill: var(--cfi); background: var(--cfi); } .hdr { fill: var(--hdr); background: var(--hdr); }
.v1 { fill: var(--v1); background: var(--v1); } .v2 { fill: var(--v2); background: var(--v2); }
.v3 { fill: var(--v3); background: var(--v3); } .gnu { fill: var(--gnu); background: var(--gnu); }
.table { fill: var(--table); background: var(--table); } .rows { fill: var(--rows); background: var(--rows); }
.attributes { fill: var(--attributes); background: var(--attributes); }
.legend { display: flex; flex-wrap: wrap; gap: .25rem 1.1rem; margin: .5rem 0 0; padding: 0; list-style: none;
  font-size: .875rem; color: var(--soft); }
.legend span { display: inline-block; width: .8rem; height: .8rem; border-radius: .15rem; margin-right: .4rem;
  vertical-align: -.05rem; }
.scroll { overflow-x: auto; margin-top: .75rem; border: 1px solid var(--line); border-radius: .4rem; }
.scroll:focus-visible, summary:focus-visible { outline: 2px solid var(--v2); outline-offset: 2px; }
.tall { max-height: 40rem; overflow-y: auto; }
table { border-collapse: collapse; width: 100%; font-size: .875rem; font-variant-numeric: tabular-nums; }
caption { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
th, td { padding: .35rem .7rem; text-align: left; vertical-align: top; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
thead th { position: sticky; top: 0; background: var(--head); color: var(--soft); font-weight: 600; }
tbody th { font-weight: 400; }
tbody tr:last-child > * { border-bottom: 0; }
tfoot > tr > * { position: sticky; bottom: 0; background: var(--head); font-weight: 650;
  border-top: 1px solid var(--line); border-bottom: 0; }
.n { text-align: right; }
.wrap { white-space: normal; min-width: 19rem; overflow-wrap: anywhere; }
.better { color: var(--good); } .worse { color: var(--bad); }
details { margin-top: .75rem; } summary { cursor: pointer; color: var(--soft); font-size: .875rem; }
footer { color: var(--soft); font-size: .875rem; padding-bottom: 2.5rem; }
@media (max-width: 34rem) {
  header, main, footer { padding-left: .75rem; padding-right: .75rem; }
  header { padding-top: 1.25rem; }
  section { padding: 1rem .85rem; margin: 1rem 0; }
  h1 { font-size: 1.4rem; }
  .cards { grid-template-columns: 1fr 1fr; gap: .6rem; }
  .cards div:last-child:nth-child(odd) { grid-column: 1 / -1; }
  .wrap { min-width: 11rem; }
  .cards div { padding: .7rem .75rem; }
  .cards .value { font-size: 1.2rem; }
}
@media print {
  :root { --page: #fff; --card: #fff; --text: #000; --soft: #444; --line: #bbb; --head: #eee;
    --cfi: #8d96a3; --hdr: #c3c9d1; --v1: #a9cbe8; --v2: #5a9bd0; --v3: #14589b;
    --table: #14589b; --attributes: #d9822b; --rows: #5a9bd0; --gnu: #b4637a; --good: #1e7a3c; --bad: #a85400; }
  body { font-size: 10pt; }
  header, main, footer { max-width: none; padding: 0; }
  section { border: 0; padding: 0; }
  section > h2, .legend, svg { break-after: avoid; }
  svg, tr { break-inside: avoid; }
  .scroll { overflow: visible; max-height: none; border: 0; }
  table { font-size: 7.5pt; } th, td { padding: .15rem .3rem; }
  thead th, tfoot > tr > * { position: static; }
  summary { display: none; }
  details::details-content { content-visibility: visible; block-size: auto; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""

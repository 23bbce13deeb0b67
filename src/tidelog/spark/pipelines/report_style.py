"""The style of the report. It follows the dark mode of the system and the width of the window."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark;
  --paper: #fbfaf8; --card: #ffffff; --ink: #1d2730; --soft: #5c6873; --line: #e3e0da; --zero: #8d969e;
  --c0: #3567a8; --c1: #d9822b; --c2: #2f8f6b; --c3: #c2407a; --c4: #7c5cc4; --c5: #b09a1f; --c6: #4aa3c7;
  --c7: #8f6248; }
@media (prefers-color-scheme: dark) { :root {
  --paper: #12171c; --card: #1a2128; --ink: #e6e9ec; --soft: #9aa7b3; --line: #2e3841; --zero: #77838e;
  --c0: #6ea3e6; --c1: #eb9d4e; --c2: #4fbe95; --c3: #ea75a8; --c4: #a990ea; --c5: #d4bf4d; --c6: #6cc3e4;
  --c7: #c4957a; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1000px; margin: 0 auto; padding: 24px 20px 48px; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 4px; letter-spacing: -.01em; }
h2 { font-size: 1.2rem; margin: 0 0 4px; } h3 { font-size: 1rem; margin: 24px 0 4px; }
header p, footer, .soft { color: var(--soft); }
p { margin: 0 0 12px; } code { font: .92em ui-monospace, SFMono-Regular, Menlo, monospace;
  overflow-wrap: anywhere; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 18px 20px;
  margin: 16px 0; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(128px, 1fr));
  gap: 10px; margin: 18px 0; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 10px 14px;
  text-decoration: none; color: inherit; }
.tile:hover, .tile:focus-visible { border-color: var(--zero); }
.tile b { display: block; font-size: 1.5rem; line-height: 1.2; font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: .87rem; }
figure { margin: 8px 0; } .plot { display: block; width: 100%; height: auto; } .narrow { display: none; }
.plot text { font-size: 12px; fill: var(--soft); font-family: inherit; }
.grid { stroke: var(--line); } .zero { stroke: var(--zero); }
.touch { fill: transparent; } .touch:hover { fill: var(--ink); fill-opacity: .12; }
.c0 { fill: var(--c0); } .c1 { fill: var(--c1); } .c2 { fill: var(--c2); } .c3 { fill: var(--c3); }
.c4 { fill: var(--c4); } .c5 { fill: var(--c5); } .c6 { fill: var(--c6); } .c7 { fill: var(--c7); }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 4px 0 0; padding: 0; }
.legend b, td.n { font-variant-numeric: tabular-nums; } .key { width: 11px; height: 11px; margin-right: 6px; }
table { border-collapse: collapse; width: 100%; font-size: .93rem; }
th { text-align: left; font-weight: 600; color: var(--soft); font-size: .85rem; }
th, td { padding: 5px 10px 5px 0; border-bottom: 1px solid var(--line); vertical-align: middle; }
.alerts td { vertical-align: top; }
tr:last-child > td { border-bottom: 0; } .n { text-align: right; }
td { overflow-wrap: break-word; } td.n, td.when { white-space: nowrap; }
.bars { width: 38%; min-width: 90px; }
.bar { display: block; width: 100%; height: 11px; }
.scroll { overflow-x: auto; }
.nothing { color: var(--soft); border-left: 3px solid var(--line); padding-left: 10px; margin-top: 8px; }
.more { margin-top: 6px; } .more > summary { color: var(--soft); }
summary { cursor: pointer; } h3 .soft { font-weight: 400; }
td details summary { color: var(--soft); }
.alerts { table-layout: fixed; } .alerts .who { width: 22%; } .alerts .when { width: 26%;
  white-space: normal; }
.alerts td { overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 12px; margin: 6px 0; font-size: .9rem; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; } ol { margin: 0; padding-left: 20px; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: 6px 0; font-size: .85rem; }
footer { font-size: .87rem; margin-top: 20px; }
@media (max-width: 640px) {
  main { padding: 16px 12px 32px; } section { padding: 14px 12px; }
  .wide { display: none; } .narrow { display: block; }
  .tiles { grid-template-columns: repeat(2, 1fr); } .bars { width: 26%; min-width: 56px; }
  th, td { padding-right: 8px; } .extra { display: none; }
  .alerts .who { width: 30%; } .alerts .when { width: 28%; } }
@media print { section { break-inside: avoid; } .touch { display: none; } }
"""

"""The picture of the comparison with Kafka: an SVG with a bar for each row that has a goal.

Costs and rates have a panel each: in the first a short bar is good, in the second a long one. The bar is the
median, the thin line the smallest and the largest pair, the notch the goal. The picture has its own
background for light and dark pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ratios import Pairs, share

WIDTH, LABELS, RIGHT = 860, 400, 90
LINE, BAR, HEAD = 26, 14, 56
STYLE = """
    .page { fill: #ffffff; } text { fill: #22303c; } .small { font-size: 11px; fill: #51606d; }
    .head { font-weight: 600; } .grid { stroke: #d5dde4; } .kafka { stroke: #51606d; stroke-dasharray: 4 3; }
    .bar { fill: #1f6fb4; } .missed { fill: #b4511f; } .spread { stroke: #22303c; stroke-width: 1.4; }
    .goal { stroke: #2e7d32; stroke-width: 2.4; }
    @media (prefers-color-scheme: dark) {
      .page { fill: #14191e; } text { fill: #e3e9ee; } .small { fill: #9fb0bf; } .grid { stroke: #2d3843; }
      .kafka { stroke: #9fb0bf; } .bar { fill: #4b9be0; } .missed { fill: #e07c45; }
      .spread { stroke: #e3e9ee; } .goal { stroke: #6fc274; }
    }
"""


def picture(rows: Sequence[Pairs]) -> str:
    """The SVG of the rows with a goal. Rows without one have ratios up to 10, which make all bars short."""
    judged = [pairs for pairs in rows if pairs.row.goal is not None]
    costs = [pairs for pairs in judged if not pairs.row.at_least]
    rates = [pairs for pairs in judged if pairs.row.at_least]
    parts: list[str] = []
    top = 0.0
    for title, chosen in (
        ("Cost of tidelog relative to Kafka: shorter is better", costs),
        ("Rate of tidelog relative to Kafka: longer is better", rates),
    ):
        if chosen:
            parts += panel(title, chosen, top)
            top += HEAD + LINE * len(chosen) + 18
    height = top + 22
    legend = "bar: median of the pairs; line: smallest to largest; green notch: goal; dashes: Kafka 4.3 = 1"
    parts.append(f'<text class="small" x="20" y="{top + 8:.0f}">{legend}</text>')
    body = "\n  ".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}"'
        ' font-family="ui-sans-serif, system-ui, sans-serif" font-size="13" role="img"'
        ' aria-label="tidelog beside Apache Kafka 4.3, figure by figure">\n'
        f'  <style>{STYLE}  </style>\n  <rect class="page" width="{WIDTH}" height="{height:.0f}"/>\n'
        f"  {body}\n</svg>\n"
    )


def panel(title: str, rows: Sequence[Pairs], top: float) -> list[str]:
    longest = max(1.0, *(pairs.spread[1] for pairs in rows), *(pairs.row.goal or 0 for pairs in rows))
    scale = (WIDTH - LABELS - RIGHT) / (longest * 1.03)
    bottom = top + HEAD + LINE * len(rows)
    parts = [f'<text class="head" x="20" y="{top + 28:.0f}">{escape(title)}</text>']
    for tick in ticks(longest):
        x = LABELS + tick * scale
        name = "kafka" if tick == 1 else "grid"
        parts.append(line(name, x, x, top + HEAD - 6, bottom))
        number = f'x="{x:.1f}" y="{top + HEAD - 12:.0f}" text-anchor="middle">{tick:g}'
        parts.append(f'<text class="small" {number}</text>')
    for index, pairs in enumerate(rows):
        parts += bar(pairs, top + HEAD + LINE * index, scale)
    return parts


def line(name: str, left: float, right: float, upper: float, lower: float) -> str:
    return f'<line class="{name}" x1="{left:.1f}" x2="{right:.1f}" y1="{upper:.1f}" y2="{lower:.1f}"/>'


def ticks(longest: float) -> list[float]:
    step = 0.25 if longest <= 1.5 else 0.5 if longest <= 4 else 1.0 if longest <= 10 else longest // 5
    return [index * step for index in range(int(longest / step) + 1)]


def bar(pairs: Pairs, top: float, scale: float) -> list[str]:
    low, high = (LABELS + edge * scale for edge in pairs.spread)
    middle, length = top + LINE / 2, pairs.ratio * scale
    upper, lower = middle - BAR / 2, middle + BAR / 2
    name = "missed" if pairs.reached is False else "bar"
    parts = [
        f'<text x="{LABELS - 10}" y="{middle + 4.5:.1f}" text-anchor="end">{escape(pairs.row.name)}</text>',
        f'<rect class="{name}" x="{LABELS}" y="{upper:.1f}" width="{length:.1f}" height="{BAR}" rx="2"/>',
        line("spread", low, high, middle, middle),
    ]
    if pairs.row.goal is not None:
        x = LABELS + pairs.row.goal * scale
        parts.append(line("goal", x, x, upper - 3, lower + 3))
    end = max(LABELS + length, high) + 8
    parts.append(f'<text class="small" x="{end:.1f}" y="{middle + 4:.1f}">{share(pairs.ratio)}</text>')
    return parts

"""Building blocks of a self-contained HTML page: escaped text, tables, figures and curves. No scripts, no links."""

from __future__ import annotations

import base64
import html
import re
from typing import Any, Iterable, List, Mapping, Optional, Sequence, Tuple

from adapter_bert.experiments.tables import ResultTable

# HTML does not allow control characters. Lone surrogates, from file names that are not UTF-8, cannot be encoded.
_FORBIDDEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_NUMBER = re.compile(r"[-+\[]*\d|–")
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _MARGIN = 340, 150, 54, 22, 10  # of a curve

# The policy forbids scripts and requests, whatever the text contains.
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
<h1>{title}</h1>
{content}
</main>
</body>
</html>
"""

_STYLE = """
:root { --text: #1b1f24; --soft: #57606a; --line: #d0d7de; --back: #fff; --panel: #f6f8fa; --accent: #0059b3;
  --good: #1a7f37; --bad: #b3261e; --warn: #8a5300; }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --soft: #9aa5b1; --line: #3a424b; --back: #12161b;
  --panel: #1b2128; --accent: #79b8ff; --good: #56d364; --bad: #ff8a80; --warn: #e3b341; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--text); font: 16px/1.5 system-ui, sans-serif;
  -webkit-text-size-adjust: 100%; }
main { max-width: 80rem; margin: 0 auto; padding: 1rem 1rem 4rem; overflow-wrap: anywhere; }
h1 { line-height: 1.2; margin: .5rem 0 1rem; }
h2 { margin: 2.5rem 0 .75rem; padding-bottom: .3rem; border-bottom: 1px solid var(--line); }
h3 { margin: 1.5rem 0 .5rem; }
h4 { margin: 1rem 0 0; }
a { color: var(--accent); }
nav ul { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; list-style: none; padding: 0; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; }
.scroll:focus-visible, summary:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
table { border-collapse: collapse; width: 100%; font-size: .875rem; font-variant-numeric: tabular-nums;
  overflow-wrap: normal; }
caption { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
th, td { padding: .35rem .7rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
thead th { background: var(--panel); vertical-align: bottom; white-space: normal; min-width: 4.5rem; }
tbody th { position: sticky; left: 0; min-width: clamp(7.75rem, 17vw, 12rem); max-width: 16rem; background: var(--back);
  font-weight: 600; white-space: normal; overflow-wrap: anywhere; }
.left, tbody th, th:first-child { text-align: left; }
tbody tr:last-child > * { border-bottom: 0; }
.text td { min-width: 13rem; white-space: normal; overflow-wrap: anywhere; }
.note { margin: .4rem 0; color: var(--soft); font-size: .85rem; }
dl { display: grid; grid-template-columns: minmax(7rem, max-content) 1fr; gap: .25rem 1rem; margin: .75rem 0; }
dt { color: var(--soft); }
dd { margin: 0; }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 24rem), 1fr)); gap: 1rem; }
figure { margin: 0; }
figcaption { color: var(--soft); font-size: .85rem; }
figure img { display: block; width: 100%; max-width: 40rem; height: auto; background: #fff; border-radius: 6px;
  border: 1px solid var(--line); }
.wide { grid-column: 1 / -1; }
.wide img { max-width: 64rem; }
details { margin: .4rem 0; border: 1px solid var(--line); border-radius: 6px; }
details > :not(summary) { margin-left: .8rem; margin-right: .8rem; }
summary { padding: .45rem .8rem; cursor: pointer; background: var(--panel); border-radius: 6px; }
summary .value { color: var(--soft); white-space: nowrap; }
.state { font-weight: 600; white-space: nowrap; }
.done { color: var(--good); } .failed { color: var(--bad); } .unfinished, .collapsed { color: var(--warn); }
.error { color: var(--bad); }
.curves { display: flex; flex-wrap: wrap; gap: .5rem 1.5rem; }
.curves figure { flex: 0 1 24rem; }
.curves svg { display: block; width: 100%; height: auto; font: 11px system-ui, sans-serif; fill: currentColor; }
.curves .axis { stroke: var(--line); fill: none; }
.curves .line { stroke: var(--accent); stroke-width: 1.5; fill: none; }
.curves .point { fill: var(--accent); }
pre { max-height: 24rem; overflow: auto; margin: .4rem 0 .75rem; padding: .6rem; background: var(--panel);
  border-radius: 6px; font-size: .8rem; line-height: 1.4; overflow-wrap: normal; }
"""


def escape(text: Any) -> str:
    """Return text that is safe in HTML, also in attributes."""
    return html.escape(_FORBIDDEN.sub("\ufffd", str(text)))


def page(title: str, sections: Mapping[str, str]) -> str:
    """Return a page with a table of contents; sections are heading -> HTML. Empty ones are left out."""
    shown = {heading: body for heading, body in sections.items() if body}
    ids = {heading: re.sub(r"\W+", "-", heading.lower()) for heading in shown}
    links = "".join(f'<li><a href="#{ids[heading]}">{escape(heading)}</a></li>' for heading in shown)
    content = [f'<nav aria-label="Contents"><ul>{links}</ul></nav>']
    for heading, body in shown.items():
        start = f'<section aria-labelledby="{ids[heading]}">\n<h2 id="{ids[heading]}">{escape(heading)}</h2>'
        content.append(f"{start}\n{body}\n</section>")
    return _PAGE.format(title=escape(title), style=_STYLE, content="\n".join(content))


def table(caption: str, content: ResultTable, is_text: bool = False) -> str:
    """Return a table in a container that scrolls; `is_text` if its cells are long texts.

    Columns are aligned to the right if their first row is a number.
    """
    first_row = content.rows[0] if content.rows else content.headers
    sides = ["" if _NUMBER.match(text) and not is_text else ' class="left"' for text in first_row]
    headers = zip(sides, content.headers)
    head = "".join(f'<th scope="col"{side}>{escape(header)}</th>' for side, header in headers)
    rows = []
    for first, *others in content.rows:
        cells = "".join(f"<td{side}>{escape(text)}</td>" for side, text in zip(sides[1:], others))
        name = escape(first).replace("_", "_<wbr>")  # break long names of tasks there
        rows.append(f'<tr><th scope="row">{name}</th>{cells}</tr>')
    style = ' class="text"' if is_text else ""
    label = escape(caption)
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in content.notes)
    return (
        f'<div class="scroll" role="region" aria-label="{label}" tabindex="0"><table{style}><caption>{label}</caption>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>" + "\n".join(rows) + f"</tbody></table></div>{notes}"
    )


def facts(values: Iterable[Tuple[str, Any]]) -> str:
    """Return a list of names and values."""
    return "<dl>" + "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in values) + "</dl>"


def text_block(label: str, text: str) -> str:
    """Return preformatted text in a container that scrolls."""
    return f'<pre role="region" aria-label="{escape(label)}" tabindex="0">{escape(text)}</pre>'


def image(svg: bytes, caption: str, is_wide: bool = False) -> str:
    """Return a figure. Embedded as an image, an SVG runs no scripts, and its identifiers cannot clash with others."""
    data = base64.b64encode(svg).decode("ascii")
    label = escape(caption)
    source = f"data:image/svg+xml;base64,{data}"
    style = ' class="wide"' if is_wide else ""
    return f'<figure{style}><img src="{source}" alt="{label}"><figcaption>{label}</figcaption></figure>'


def curve(caption: str, x_label: str, points: Sequence[Tuple[float, Optional[float]]]) -> str:
    """Return a small line chart; y may be None, which leaves a gap. Empty if no point has a y."""
    known = [(x, y) for x, y in points if y is not None]
    if not known:
        return ""
    xs, ys = zip(*known)
    right, bottom = _WIDTH - _MARGIN, _HEIGHT - _BOTTOM

    def place(x: float, y: float) -> Tuple[float, float]:
        across = (x - min(xs)) / (max(xs) - min(xs)) if max(xs) > min(xs) else 0.5
        up = (y - min(ys)) / (max(ys) - min(ys)) if max(ys) > min(ys) else 0.5
        return _LEFT + 6 + across * (right - _LEFT - 6), bottom - 6 - up * (bottom - 6 - _MARGIN)

    lines = [f'<path class="axis" d="M{_LEFT} {_MARGIN // 2}V{bottom}H{right}"/>']
    lines += (f'<polyline class="line" points="{_join(map(place, *zip(*run)))}"/>' for run in _runs(points))
    lines += ('<circle class="point" cx="{:.1f}" cy="{:.1f}" r="2"/>'.format(*place(x, y)) for x, y in known)
    for y in sorted({min(ys), max(ys)}):
        lines.append(f'<text x="{_LEFT - 4}" y="{place(xs[0], y)[1] + 4:.1f}" text-anchor="end">{y:.4g}</text>')
    for x in sorted({min(xs), max(xs)}):
        anchor = "end" if x == max(xs) > min(xs) else "start"
        lines.append(f'<text x="{place(x, ys[0])[0]:.1f}" y="{_HEIGHT - 6}" text-anchor="{anchor}">{x:g}</text>')
    lines.append(f'<text x="{(_LEFT + right) / 2}" y="{_HEIGHT - 6}" text-anchor="middle">{escape(x_label)}</text>')
    label = f"{caption}, by {x_label}: from {ys[0]:.4g} to {ys[-1]:.4g}; {min(ys):.4g} to {max(ys):.4g} in between"
    svg = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(label)}">{"".join(lines)}</svg>'
    return f"<figure><figcaption>{escape(caption)}</figcaption>{svg}</figure>"


def _runs(points: Iterable[Tuple[float, Optional[float]]]) -> List[List[Tuple[float, float]]]:
    """Return the points between gaps."""
    runs: List[List[Tuple[float, float]]] = [[]]
    for x, y in points:
        if y is None:
            runs.append([])
        else:
            runs[-1].append((x, y))
    return [run for run in runs if len(run) > 1]


def _join(points: Iterable[Tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)

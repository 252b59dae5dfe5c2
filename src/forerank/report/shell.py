"""The frame of every page that is one file: its head, style, content policy and sections' links."""

from collections.abc import Sequence
from html import escape
from importlib.resources import files as resources

# Whatever a label or a path contains, the browser runs no script and asks no outside address.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def html_page(
    title: str,
    body: str,
    *,
    lead: str = "",
    links: str = "",
    notes: Sequence[str] = (),
    style: str = "",
    footer: str = "Written by Forerank. This page is one file and asks nothing of the network.",
) -> str:
    """A whole page around `body`; `body` and `links` are HTML, everything else is text and is escaped.

    Args:
        lead: the sentence under the title.
        links: `<a>` elements to the sections.
        notes: sentences that a reader must not miss.
        style: CSS after the common one.

    >>> "<h1>a &lt; b</h1>" in html_page("a < b", "<p>body</p>")
    True
    """
    common = resources("forerank.report").joinpath("page.css").read_text(encoding="utf-8")
    said = "".join(f"<li>{escape(note[:1].upper() + note[1:])}</li>" for note in notes)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="Forerank"><title>{escape(title)}</title>
<link rel="icon" href="data:,"><style>{common}{style}</style></head>
<body><main><header><h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p>
{f'<nav aria-label="sections">{links}</nav>' if links else ""}</header>
{f'<ul class="notes">{said}</ul>' if said else ""}
{body}
<footer>{escape(footer)}</footer>
</main></body></html>
"""

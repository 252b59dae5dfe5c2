"""One HTML page for everything that is there: tables, figures, claims. It needs no other file and no
network."""

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from forerank.files import write_atomically
from forerank.paper import claims
from forerank.paper.experiments import EXPERIMENTS
from forerank.paper.published import source
from forerank.paper.render import rendered, time_taken
from forerank.paper.study import Study
from forerank.paper.tuning import choices_table
from forerank.report.shell import html_page

NAME = "index.html"
_STYLE = """
figure.drawn {
  margin: 1rem 0 0; padding: 1rem; background: #fff; border: 1px solid var(--rule); border-radius: 14px;
}
figure.drawn img { display: block; width: 100%; height: auto; max-width: 60rem; margin: 0 auto; }
figure.drawn img.small { max-width: 34rem; }
section .scroll { margin-top: 1rem; }
section > .scroll th, section > .scroll td { padding: .3rem .55rem; }
section > .scroll th:first-child { padding-left: 0; }
section .scroll ~ p, .said p { color: var(--soft); font-size: .93rem; max-width: 60rem; }
tr:has(th:empty) th, tr:has(th:empty) td { border-top: 0; }
tbody tr:has(+ tr > th:empty) th, tbody tr:has(+ tr > th:empty) td { border-bottom-color: transparent; }
table:has(thead th:nth-child(2):empty) td:nth-child(2) { color: var(--soft); text-align: left; }
caption { font-weight: 500; white-space: normal; max-width: 60rem; }
.verdict { border-radius: 99px; padding: .1rem .7rem; font-size: .88rem; font-weight: 600; white-space:
nowrap; } .verdict.holds { background: var(--good-soft); color: var(--good); }
.verdict.fails { background: var(--bad-soft); color: var(--bad); }
.verdict.open { background: var(--accent-soft); color: var(--ink); }
.claims td, .claims th { white-space: normal; text-align: left; vertical-align: top; }
.claims .soft { font-weight: 400; font-size: .9rem; }
.claims details { color: var(--soft); font-size: .9rem; } .claims li { margin: .15rem 0; }
.made { color: var(--soft); font-size: .88rem; }
"""
_KINDS = {
    claims.HOLDS: "holds",
    claims.FAILS: "fails",
    claims.SAME: "open",
    claims.PART: "open",
    claims.OPEN: "open",
    claims.ABSENT: "open",
    claims.PENDING: "open",
}
_NARROW = {"sweep-b", "sweep-p"}


def write_study_page(study: Study, verdicts: Sequence[claims.Verdict]) -> None:
    """Write `index.html` into the study's folder from what is there; whole or not at all."""
    there = [(name, values) for name in EXPERIMENTS if (values := rendered(name, study)) is not None]
    tables = [(n, v) for n, v in there if EXPERIMENTS[n].kind == "table"]
    figures = [(n, v) for n, v in there if EXPERIMENTS[n].kind == "figure"]
    sections = [_section(name, values, study) for name, values in [*tables, *figures]]
    about_claims = _claims(verdicts, study)
    # Before anything was trained, what was asked for comes first.
    trained = any(values["runs"]["count"] for _, values in there)
    sections = [about_claims, *sections] if trained else [*sections, about_claims]
    sections += _chosen_values(study)
    links = [("claims", "Claims")] + [(name, values["reference"]) for name, values in [*tables, *figures]]
    nav = "".join(
        f'<a href="#{anchor}" title="{escape(_title(anchor))}">{escape(_link(anchor, text))}</a>'
        for anchor, text in links
    )
    title = f"The PNP paper on {study.on}"
    lead = (
        f"Every table and figure of the paper, measured on {study.on} beside the published numbers. "
        f"{study.seeds} seeds for the losses that claims compare. Command: forerank paper all --on {study.on}"
    )
    footer = f"Published numbers: {source()}. Written by Forerank; this page is one file."
    text = html_page(title, "".join(sections), lead=lead, links=nav, style=_STYLE, footer=footer)
    write_atomically(study.folder / NAME, text)


def _title(name: str) -> str:
    return EXPERIMENTS[name].title if name in EXPERIMENTS else name


def _link(name: str, reference: str) -> str:
    return name if name in EXPERIMENTS else reference


def _claims(judged: Sequence[claims.Verdict], study: Study) -> str:
    """The claims that can be judged; those that wait for runs are folded away."""
    ready = [v for v in judged if v.word != claims.PENDING]
    waiting = [v for v in judged if v.word == claims.PENDING]
    words = (claims.HOLDS, claims.PART, claims.FAILS, claims.SAME, claims.OPEN)
    counts = ", ".join(f"{sum(v.word == word for v in ready)} {word}" for word in words)
    folded = ""
    if waiting:
        items = "".join(f"<li>{escape(v.said)}: {escape(v.evidence[0])}</li>" for v in waiting)
        about = f"{len(waiting)} more claims need runs that are not there"
        folded = f"<details><summary>{about}</summary><ul>{items}</ul></details>"
    rule = claims.rule(study, judged).replace("*", "")
    return (
        '<section id="claims"><h2>The paper\'s claims, tested</h2>'
        f'<p class="under">{escape(counts)}. {escape(rule)}</p>'
        '<div class="card scroll"><table class="claims"><thead><tr><th>claim</th><th>in the paper</th>'
        "<th>verdict</th><th>seeds</th></tr>"
        f"</thead><tbody>{''.join(_row(v) for v in ready)}</tbody></table></div>{folded}</section>"
    )


def _row(verdict: claims.Verdict) -> str:
    return (
        f'<tr><th scope="row">{escape(verdict.said)}{_evidence(verdict.evidence)}</th>'
        f"<td>{escape(verdict.where)}</td>"
        f'<td><span class="verdict {_KINDS[verdict.word]}">{escape(verdict.word)}</span></td>'
        f"<td>{verdict.seeds or ''}</td></tr>"
    )


def _chosen_values(study: Study) -> list[str]:
    table = choices_table(study)
    if table is None:
        return []
    return [f'<section id="chosen"><h2>Values chosen on validation classes</h2>{table.to_html()}</section>']


def _evidence(lines: tuple[str, ...]) -> str:
    """One line is shown, several fold away."""
    if len(lines) == 1:
        return f'<div class="soft">{escape(lines[0])}</div>'
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<details><summary>{len(lines)} lines of numbers</summary><ul>{items}</ul></details>"


def _section(name: str, values: dict[str, Any], study: Study) -> str:
    drawn = ""
    if values["figure"]:
        picture = study.folder / "figures" / values["figure"]
        vector = picture.with_suffix(".svg")
        small = ' class="small"' if name in _NARROW and not study.beside else ""
        drawn = (
            f'<figure class="drawn"><img{small} alt="{escape(values["title"])}" '
            f'src="{_address(picture if name == "retrieval-examples" else vector)}"></figure>'
        )
    said = "".join(f"<p>{escape(note)}</p>" for note in values["notes"])
    return (
        f'<section id="{name}"><h2>{escape(values["title"])}</h2>'
        f'<p class="made">{escape(values["reference"])}. Time: {escape(time_taken(name, study))} Command: '
        f"<code>forerank paper run {name} --on {escape(study.on)}</code></p>"
        f'{drawn}{"".join(values["tables"])}<div class="said">{said}</div></section>'
    )


def _address(picture: Path) -> str:
    kind = {".svg": "image/svg+xml", ".png": "image/png"}[picture.suffix]
    return f"data:{kind};base64,{base64.b64encode(picture.read_bytes()).decode()}"

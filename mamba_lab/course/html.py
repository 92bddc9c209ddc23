"""A notebook as one HTML file that needs no network: formulas as MathML, figures embedded, its own small style."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from jinja2 import pass_context
from nbconvert import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from pygments.formatters import HtmlFormatter  # type: ignore[import-untyped]
from traitlets.config import Config

from .mathml import to_mathml
from .offline import requests_of

if TYPE_CHECKING:
    from nbformat import NotebookNode

TEMPLATES = Path(__file__).parent / "templates"
_WIDGET = "application/vnd.jupyter.widget-view+json"
_FACTS_NUMBER = re.compile(r"(?<![\[\d])(\d{2})(?![\d\]]| minutes)")


@dataclass(frozen=True)
class PageLink:
    """A neighbour of a page: where it is and what it is called."""

    href: str
    title: str


class PageError(ValueError):
    """A page that would not show offline: what it would fetch, or the formula that does not convert."""


class _Renderer(IPythonRenderer):
    """nbconvert's Markdown, with formulas converted (never inside code) and links to notebooks turned to pages."""

    def block_math(self, body: str) -> str:
        return f'<div class="formula">{to_mathml(body, block=True)}</div>'

    def inline_math(self, body: str) -> str:
        return to_mathml(body)

    def latex_environment(self, name: str, body: str) -> str:
        return self.block_math(f"\\begin{{{name}}}{body}\\end{{{name}}}")

    def link(self, text: str, url: str, title: str | None = None) -> str:
        if re.fullmatch(r"(?!\w+:)[^#?]+\.ipynb(#.*)?", url):
            url = url.replace(".ipynb", ".html", 1)
        return str(super().link(text, url, title))


class _PageExporter(HTMLExporter):
    """The package's template, for every machine the same: no configuration files, no MathJax, no RequireJS."""

    mathjax_url = require_js_url = jquery_url = mermaid_js_url = mermaid_layout_elk_js_url = ""

    def __init__(self) -> None:
        priority = ["text/html", "text/markdown", "text/latex", "image/png", "text/plain"]
        config = Config({"NbConvertBase": {"display_data_priority": priority}})
        super().__init__(config=config, template_name="course", extra_template_basedirs=[str(TEMPLATES)])

    @pass_context
    def markdown2html(self, context: Mapping[str, Any], source: str) -> str:
        attachments = context.get("cell", {}).get("attachments", {})
        return str(MarkdownWithMath(renderer=_Renderer(escape=False, attachments=attachments)).render(source))


def page(
    notebook: NotebookNode,
    title: str,
    *,
    previous: PageLink | None = None,
    following: PageLink | None = None,
    index: str = "index.html",
    known: Mapping[str, str] | None = None,
) -> str:
    """The HTML of ``notebook``.

    ``previous`` and ``following`` are its neighbours, ``index`` the address of the contents page, ``known`` maps the
    two-digit numbers of existing pages to their addresses (numbers in the first cell's facts become links).
    Widgets do not run on a page: their outputs are left out, and the static figure beside each stays.
    Raises PageError when the page would fetch anything or a formula does not convert.
    """
    notebook = _for_page(notebook, known or {})
    resources = {
        "course": {"title": title, "previous": previous, "following": following, "index": index, "style": style()}
    }
    try:
        html, _ = _PageExporter().from_notebook_node(notebook, resources=resources)
    except ValueError as error:
        raise PageError(f"{title}: {error}") from error
    fetched = requests_of(html)
    if fetched:
        raise PageError(f"{title}: the page would fetch {fetched[0]} ({len(fetched)} in all); a page stands alone")
    return html


def index_page(rows: Sequence[Mapping[str, Any]], *, note: str = "") -> str:
    """The contents page: per row number, title, question, minutes, href (or None), state, seconds."""
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(TEMPLATES / "course"), autoescape=True)
    return environment.get_template("contents.html.j2").render(rows=rows, note=note, style=style())


def style() -> str:
    """The pages' one style sheet: layout and colours, then those of the code, each for light and for dark."""
    css = (TEMPLATES / "course" / "course.css").read_text(encoding="utf-8")
    light = HtmlFormatter(style="tango").get_style_defs(".highlight")
    dark = HtmlFormatter(style="github-dark").get_style_defs(".highlight")
    return f"{css}\n{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n.highlight {{ background: none }}"


def _for_page(notebook: NotebookNode, known: Mapping[str, str]) -> NotebookNode:
    notebook = deepcopy(notebook)
    notebook.metadata.pop("widgets", None)
    notebook.metadata["language_info"] = {"name": "python", "pygments_lexer": "ipython3"}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if _shown(output)]
    if notebook.cells and notebook.cells[0].cell_type == "markdown":
        first = notebook.cells[0]
        first.source = "\n".join(_linked(line, known) for line in first.source.splitlines())
    return notebook


def _shown(output: NotebookNode) -> bool:
    data = output.get("data", {})
    return _WIDGET not in data or "image/png" in data


def _linked(line: str, known: Mapping[str, str]) -> str:
    if " · needs: " not in line:
        return line
    return _FACTS_NUMBER.sub(lambda m: f"[{m[1]}]({known[m[1]]})" if m[1] in known else m[1], line)

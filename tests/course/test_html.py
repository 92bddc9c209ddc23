from __future__ import annotations

import re
import shutil
import subprocess
import threading
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_notebook, new_output
from notebook_samples import PNG, code, figure, lesson, md, printed, shown

from mamba_lab.course.html import TEMPLATES, PageError, PageLink, index_page, page
from mamba_lab.course.offline import requests_of

WIDGET = {"application/vnd.jupyter.widget-view+json": "{}", "text/plain": "Painter()"}


class Elements(HTMLParser):
    """Every tag with its attributes, and the text outside style."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.lasttag != "style":
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]


def of(*cells: NotebookNode) -> Elements:
    return Elements(page(new_notebook(cells=list(cells)), "00 Test"))


def test_formulas_are_mathml_and_code_is_left_alone() -> None:
    found = of(md("Here $h_t$ and `x = $1$`.\n\n$$y_t = c_t h_t$$\n\n```python\ncost = '$5$'\n```"), code("a = '$b$'"))
    assert [math["display"] for math in found.all("math")] == ["inline", "block"]
    assert "x = $1$" in found.text
    assert "'$5$'" in found.text
    assert "'$b$'" in found.text
    assert "h_t" not in found.text


def test_a_latex_output_is_mathml_too() -> None:
    found = of(code("show()", shown({"text/latex": "$h_t$", "text/plain": "h"})))
    assert len(found.all("math")) == 1


def test_a_figure_has_its_picture_alt_text_and_caption() -> None:
    found = of(code("draw()", figure("Figure 1. A <b> & B.", 'Bars "of" 4.')))
    assert found.all("img") == [{"src": f"data:image/png;base64,{PNG}", "alt": 'Bars "of" 4.', "width": "760"}]
    assert len(found.all("figcaption")) == 1
    assert found.text.count("Figure 1. A <b> & B.") == 1
    assert found.all("b") == []


def test_a_widget_leaves_only_its_picture() -> None:
    found = of(code("paint()", shown(WIDGET), shown({**WIDGET, "image/png": PNG})))
    assert "Painter()" not in found.text
    assert len(found.all("img")) == 1
    assert found.all("script") == []


def test_scripts_in_outputs_do_not_reach_the_page() -> None:
    found = of(code("run()", shown({"application/javascript": "alert(1)", "text/plain": "<Javascript object>"})))
    assert found.all("script") == []
    assert "alert" not in found.text


def test_printed_text_and_errors_are_shown_escaped() -> None:
    error = new_output("error", ename="E", evalue="v", traceback=["\x1b[31mE\x1b[0m: <v>"])
    found = of(code("f()", printed("a <b> & c\n"), error))
    assert "a <b> & c" in found.text
    assert "E: <v>" in found.text
    assert found.all("b") == []


def test_links_lead_to_pages_and_facts_to_neighbours() -> None:
    notebook = lesson()
    notebook.cells[2].source += " See [03](03_b.ipynb#top) and [a file](https://example.org/x.ipynb)."
    html = page(
        notebook,
        "02 Chunks",
        previous=PageLink("01_a.html", "01 A"),
        following=PageLink("03_b.html", "03 B & C"),
        known={"00": "00_x.html", "03": "03_b.html", "30": "no.html"},
    )
    found = Elements(html)
    hrefs = [a.get("href") for a in found.all("a")]
    assert {"03_b.html#top", "https://example.org/x.ipynb", "00_x.html", "index.html"} <= set(hrefs)
    assert "no.html" not in hrefs
    assert [a["href"] for a in found.all("a") if a.get("rel") == "prev"] == ["01_a.html"] * 2
    assert "03 B & C →" in found.text


def test_exercises_are_marked() -> None:
    classes = " ".join(section.get("class") or "" for section in Elements(page(lesson(), "x")).all("section"))
    assert "celltag_exercise " in f"{classes} "
    assert "celltag_exercise-core" in classes


def test_a_page_is_for_light_and_dark_and_for_reading() -> None:
    html = page(lesson(), "x")
    assert re.search(r"@media \(prefers-color-scheme: dark\) \{\s*:root \{\s*--page: #1", html)
    assert "max-width: 760px" in html
    assert '<html lang="en">' in html


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("![a](https://example.org/a.png)", "would fetch"),
        ("<img src='https://example.org/a.png' alt='a'>", "would fetch"),
        ("<script src='x.js'></script>", "would fetch"),
        ("$\\nocommand$", "unknown to latex2mathml"),
    ],
)
def test_a_page_that_would_not_show_offline_is_refused(source: str, said: str) -> None:
    with pytest.raises(PageError, match=said):
        of(md(source))


def test_a_page_fetches_nothing() -> None:
    assert requests_of(page(lesson(), "x")) == []


def test_a_users_nbconvert_configuration_does_not_change_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = page(lesson(), "x")
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path))
    (tmp_path / "jupyter_nbconvert_config.py").write_text("c.TemplateExporter.exclude_input = True\n")
    assert page(lesson(), "x") == before


def test_the_contents_page_escapes_and_says_what_failed() -> None:
    row = {"number": "00", "title": "A <b>", "question": "Why & how?", "minutes": 20, "href": "00_a.html"}
    rows = [
        {**row, "state": "ok", "label": "ok, 3 s"},
        {**row, "state": "failed", "label": "failed"},
        {**row, "href": None, "state": "not-run", "label": "not run"},
    ]
    html = index_page(rows)
    found = Elements(html)
    assert found.text.count("A <b>") == found.text.count("Why & how?") == 3
    assert [a["href"] for a in found.all("a")] == ["00_a.html"] * 2
    assert [tr.get("class") for tr in found.all("tr")][1:] == ["ok", "failed", "not-run"]
    assert requests_of(html) == []


def test_the_templates_are_files_of_the_package() -> None:
    names = {path.name for path in (TEMPLATES / "course").iterdir()}
    assert names == {"conf.json", "contents.html.j2", "course.css", "index.html.j2"}


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine; requests_of has judged the same page above")
def test_a_browser_without_a_network_asks_for_nothing_and_draws_formulas(tmp_path: Path) -> None:
    asked: list[str] = []

    class Proxy(BaseHTTPRequestHandler):
        """Stands between the browser and everything: whatever it is asked for counts as a request."""

        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        do_CONNECT = do_GET

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    notebook = lesson()
    file = tmp_path / "page.html"
    probe = (
        "<script>addEventListener('load', () => { const box = document.querySelector('math').getBoundingClientRect();"
        "document.title = `math ${box.width > 20 && box.height > 8}, img ${document.images[0].naturalWidth},"
        " fetched ${performance.getEntriesByType('resource').filter(r => !r.name.startsWith('data:')).length}`"
        "})</script>"
    )
    file.write_text(page(notebook, "x").replace("</body>", f"{probe}</body>"), encoding="utf-8")
    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
        flags += " --disable-component-update --disable-sync --dump-dom --virtual-time-budget=3000"
        command = [str(CHROMIUM), *flags.split(), f"--user-data-dir={tmp_path / 'profile'}"]
        command += [f"--proxy-server=127.0.0.1:{server.server_port}", "--proxy-bypass-list=<-loopback>", file.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        server.shutdown()
    assert "<title>math true, img 1, fetched 0</title>" in done.stdout, done.stdout[:300] + done.stderr[-2000:]
    assert not [path for path in asked if "example" in path or path.startswith("/")], asked

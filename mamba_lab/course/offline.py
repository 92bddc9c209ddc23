"""What a browser would fetch to show a page. For a course page: nothing."""

from __future__ import annotations

import re
from html.parser import HTMLParser

# A link in the text is followed only by a click; everything below is fetched by showing the page.
_FETCHED = {
    ("script", "src"),
    ("img", "src"),
    ("img", "srcset"),
    ("source", "src"),
    ("source", "srcset"),
    ("iframe", "src"),
    ("embed", "src"),
    ("object", "data"),
    ("audio", "src"),
    ("video", "src"),
    ("video", "poster"),
    ("track", "src"),
    ("input", "src"),
    ("link", "href"),
    ("use", "href"),
    ("use", "xlink:href"),
    ("image", "href"),
    ("image", "xlink:href"),
    ("body", "background"),
}
_CSS_URL = re.compile(r"url\(\s*['\"]?(?!data:|#)([^)'\"]+)|@import\s+['\"]?([^;'\"]+)", re.IGNORECASE)
_SCRIPT_URL = re.compile(r"['\"`]((?:https?:|wss?:)?//[^'\"`\s]+)")


class _Requests(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[str] = []
        self.inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.inside = tag if tag in ("style", "script") else self.inside
        for name, value in attrs:
            if value is None:
                continue
            if (tag, name) in _FETCHED and not value.startswith(("data:", "#")):
                self.found.append(f"<{tag} {name}={value}>")
            if name == "style":
                self._css(value)
            if tag == "meta" and name == "http-equiv" and value.lower() == "refresh":
                self.found.append("<meta http-equiv=refresh>")

    def handle_endtag(self, tag: str) -> None:
        if tag == self.inside:
            self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside == "style":
            self._css(data)
        elif self.inside == "script":
            self.found.extend(f"script: {match}" for match in _SCRIPT_URL.findall(data))

    def _css(self, text: str) -> None:
        self.found.extend(f"css: {(url or imported).strip()}" for url, imported in _CSS_URL.findall(text))


def requests_of(html: str) -> list[str]:
    """Every place of ``html`` that a browser would fetch on showing it: scripts, styles, fonts, images, frames.

    Data addresses, fragments and links that wait for a click do not count. Relative addresses do: a page stands alone.
    """
    parser = _Requests()
    parser.feed(html)
    parser.close()
    return parser.found

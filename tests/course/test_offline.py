from __future__ import annotations

import pytest

from mamba_lab.course.offline import requests_of


@pytest.mark.parametrize(
    "html",
    [
        '<script src="https://cdn.example/x.js"></script>',
        '<link rel="stylesheet" href="//fonts.example/x.css">',
        '<img src="http://example.org/x.png">',
        '<img src="figures/x.png">',
        '<img srcset="x.png 2x">',
        '<iframe src="https://example.org"></iframe>',
        '<svg><image href="x.png"/></svg>',
        "<style>@import 'x.css';</style>",
        "<style>@font-face { src: url(https://example.org/x.woff) }</style>",
        "<style>p { background: url('x.png') }</style>",
        '<p style="background: url(x.png)">',
        "<script>fetch('https://example.org')</script>",
        '<meta http-equiv="refresh" content="0; url=https://example.org">',
    ],
)
def test_what_a_browser_would_fetch_is_found(html: str) -> None:
    assert len(requests_of(html)) == 1


@pytest.mark.parametrize(
    "html",
    [
        '<a href="https://example.org">a link waits for a click</a>',
        '<img src="data:image/png;base64,AAAA">',
        '<link rel="icon" href="data:,">',
        "<style>p { background: url(data:image/png;base64,AAAA) }</style>",
        "<pre>import 'https://example.org' &lt;img src=x&gt; url(x.png) @import y</pre>",
        '<math xmlns="http://www.w3.org/1998/Math/MathML"></math>',
    ],
)
def test_what_it_would_not_is_not(html: str) -> None:
    assert requests_of(html) == []

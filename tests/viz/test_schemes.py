"""The one picture: its numbers come from plans, and its words say what it shows."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mamba_lab.example import LENGTHS
from mamba_lab.paths import checkout_root
from mamba_lab.viz import readme
from mamba_lab.viz.layout import rows_of
from mamba_lab.viz.schemes import SCHEMES, Panel, alt_text, draw_panels, four_panels, four_schemes, one_pack, padded


def drawn(panels=None, **kwargs) -> list[str]:
    fig = four_schemes(panels=panels, **kwargs)
    return [t.get_text() for t in fig.texts]


def documents(panel: Panel) -> list[list[str]]:
    names = "ABCD"
    return [
        [f"{names[p.document]}{p.start}:{p.stop}" for p in row.pieces] + [f"pad {row.length - row.n_tokens}"]
        for group in rows_of(panel.plans)
        for row in group
    ]


def test_the_four_panels() -> None:
    padding, buckets, stream, pack = four_panels()
    assert documents(padding) == [["A0:4", "pad 3"], ["B0:2", "pad 5"], ["C0:3", "pad 4"], ["D0:7", "pad 0"]]
    assert documents(buckets) == [["B0:2", "pad 1"], ["C0:3", "pad 0"], ["A0:4", "pad 3"], ["D0:7", "pad 0"]]
    assert documents(stream) == [["A0:4", "B0:2", "C0:2", "pad 0"], ["C2:3", "D0:7", "pad 0"]]
    assert documents(pack) == [["A0:4", "B0:2", "C0:3", "D0:7", "pad 0"]]
    assert [p.percent for p in four_panels()] == ["57%", "80%", "100%", "100%"]
    assert [p.n_leaks for p in four_panels()] == [0, 0, 3, 0]
    assert [p.n_cut for p in four_panels()] == [0, 0, 1, 0]
    assert [p.boundaries for p in four_panels()] == [True, True, False, True]


def test_numbers_in_the_picture_follow_the_plans() -> None:
    """With other documents the picture says other numbers: nothing in it is typed."""
    lengths = [5, 1, 1, 5]
    panels = four_panels(lengths)
    said = drawn(panels, words=[["w"] * n for n in lengths])
    assert "12/20 = 60% valid" in said
    assert "12/12 = 100% valid" in said
    assert "8 positions of padding" in said
    usual = drawn()
    assert {"16/28 = 57% valid", "16/20 = 80% valid", "16/16 = 100% valid"} <= set(usual)
    assert "3 leaks, 1 document cut" in usual


def test_leaks_are_drawn_once_each() -> None:
    for wide in (False, True):
        fig = four_schemes(wide=wide)
        arrows = [sum(p.get_gid() == "leak" for p in ax.patches) for ax in fig.axes]
        assert sorted(arrows) == [0, 0, 0, 1, 3], "three in the stream, one in the key"


def test_alt_text_agrees_with_the_plans() -> None:
    text = alt_text()
    padding, buckets, stream, pack = four_panels()
    found = re.findall(r"(\d+) of (\d+)", text)
    assert found == [(str(p.n_tokens), str(p.n_positions)) for p in (padding, buckets)]
    assert re.findall(r"\d+%", text) == [p.percent for p in (padding, buckets, stream, pack)]
    assert f"{stream.n_leaks} red dashed arrows" in text
    assert sum(LENGTHS) == padding.n_tokens == 16


def test_readme_shows_the_picture_with_this_alt_text() -> None:
    root = checkout_root()
    assert root is not None
    image = re.search(r'<img src="assets/four_schemes.png"[^>]*alt="([^"]*)"', (root / "README.md").read_text("utf-8"))
    assert image, "README.md has no <img src=assets/four_schemes.png ... alt=...>"
    assert image[1] == alt_text(), "put the text that `python -m mamba_lab.viz.readme` prints into README.md"


def test_the_stored_picture_is_current(tmp_path: Path) -> None:
    root = checkout_root()
    assert root is not None
    stored = Image.open(root / "assets" / readme.NAME).convert("RGB")
    fresh = Image.open(io.BytesIO(readme.build(tmp_path).read_bytes())).convert("RGB")
    assert stored.size == fresh.size
    assert stored.width == 2000
    assert 600 <= stored.height <= 800
    # Releases of matplotlib draw and place glyphs differently, by some points: so blocks of 8 x 8 are compared.
    coarse = (stored.width // 8, stored.height // 8)
    pixels = [np.asarray(image.resize(coarse, Image.Resampling.BOX), dtype=int) for image in (stored, fresh)]
    assert np.abs(pixels[0] - pixels[1]).mean() < 2.2


@pytest.mark.parametrize("name", SCHEMES)
def test_no_scheme_loses_a_token(name: str) -> None:
    rng = np.random.default_rng(0)
    lengths = [int(n) for n in rng.integers(1, 40, 30)]
    plans = SCHEMES[name].plans(lengths, 16, 4)
    panel = Panel(name, plans, SCHEMES[name].boundaries)
    assert panel.n_tokens == sum(lengths)
    seen = sorted((p.document, t) for row in panel.rows for p in row.pieces for t in range(p.start, p.stop))
    assert seen == [(i, t) for i, n in enumerate(lengths) for t in range(n)]


def bins(name: str, capacity: int, buffer: int = 1, lengths: tuple[int, ...] = LENGTHS) -> list[list[str]]:
    scheme = SCHEMES[name]
    return documents(Panel(name, scheme.plans(lengths, capacity, buffer), scheme.boundaries))


def test_packing_schemes_by_hand() -> None:
    assert bins("packed in order", 8) == [["A0:4", "B0:2", "pad 2"], ["C0:3", "pad 5"], ["D0:7", "pad 1"]]
    assert bins("packed from a buffer", 9, 2) == [["A0:4", "B0:2", "pad 3"], ["C0:3", "pad 6"], ["D0:7", "pad 2"]]
    assert bins("packed from a buffer", 9, 4) == [["A0:4", "C0:3", "pad 2"], ["B0:2", "D0:7", "pad 0"]]
    assert bins("best fit", 9) == bins("packed from a buffer", 9, 4)
    assert all(SCHEMES[name].boundaries for name in ("packed in order", "packed from a buffer", "best fit"))


@pytest.mark.parametrize("name", ["packed in order", "packed from a buffer", "best fit"])
def test_packing_schemes_split_what_is_longer_than_a_row(name: str) -> None:
    pieces = [piece for row in bins(name, 6) for piece in row]
    assert {"D0:6", "D6:7"} <= set(pieces)


def test_panels_stay_on_the_page() -> None:
    panels = [Panel("Headings are wider than rows", padded([3, 2]), True)] * 2
    figure = draw_panels(panels, [(0, 1)], words=[["a"] * 3, ["b"] * 2])
    ends = [t.get_position()[0] * figure.get_figwidth() for t in figure.texts if "valid" in t.get_text()]
    assert figure.axes[0].get_position().x1 * figure.get_figwidth() < ends[0] - 0.1, "a heading is wider than its rows"
    assert max(ends) <= figure.get_figwidth() - 0.1


def test_padded_and_pack_by_hand() -> None:
    assert Panel("", padded([5, 1]), True).note == "4 positions of padding"
    assert Panel("", padded([2, 1]), True).note == "1 position of padding"
    assert Panel("", one_pack([5, 1]), False).note == "1 leak"
    assert Panel("", one_pack([5, 1]), True).note == "no padding, no leak, nothing cut"

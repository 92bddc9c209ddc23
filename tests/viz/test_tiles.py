import pytest

from mamba_lab.viz.figure import check_labels
from mamba_lab.viz.tiles import tile_loads


def loads(*arguments) -> list[str]:
    """Each cell as its text, with + for a token of the tile's own."""
    fig = tile_loads(*arguments)
    check_labels(fig)
    ax = fig.axes[0]
    names = [text.get_text() for text in ax.texts if not text.get_text().startswith("tile")]
    return [name + ("+" if p.get_gid() == "own" else "") for name, p in zip(names, ax.patches, strict=True)]


def test_each_piece_has_a_halo_that_ends_at_its_sequence() -> None:
    assert loads([0, 4, 6], 5, 3) == [
        *["0", "0", "A0+", "A1+", "A2+", "A3+", "0", "0", "B0+"],
        *["0", "B0", "B1+"],
    ]


def test_a_halo_inside_a_sequence_has_its_tokens() -> None:
    assert loads([0, 4], 3, 3) == ["0", "0", "A0+", "A1+", "A2+", "A1", "A2", "A3+"]


def test_each_line_has_its_tile_and_empty_sequences_have_no_cell() -> None:
    names = [text.get_text() for text in tile_loads([0, 2, 2, 3], 2, 2).axes[0].texts]
    assert names == ["tile 0", "0", "A0", "A1", "tile 1", "0", "C0"]


def test_sizes_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match="tile is 0"):
        tile_loads([0, 2], 0, 2)
    with pytest.raises(ValueError, match="width is 0"):
        tile_loads([0, 2], 2, 0)

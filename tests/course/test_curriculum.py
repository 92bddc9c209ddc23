import pytest

from mamba_lab.course.curriculum import CURRICULUM, TRACKS, entry
from mamba_lab.paths import checkout_root


def test_what_is_said_to_be_written_is_there_and_no_more() -> None:
    root = checkout_root()
    assert root is not None
    written = {e.filename for e in CURRICULUM if e.written}
    assert {path.name for path in (root / "notebooks").glob("*.ipynb")} == written
    assert {path.name for path in (root / "notebooks" / "solutions").glob("*.ipynb")} == written


def test_a_notebook_needs_only_earlier_ones_and_tracks_name_known_ones() -> None:
    numbers = [e.number for e in CURRICULUM]
    assert numbers == [f"{n:02d}" for n in range(16)]
    assert all(needed < e.number for e in CURRICULUM for needed in e.needs)
    assert all(set(track) <= set(numbers) for track in TRACKS.values())


def test_an_unknown_number_names_the_known_ones() -> None:
    assert entry("03").stem == "bucketed_padding"
    with pytest.raises(ValueError, match="no notebook '16'; there are 00 to 15"):
        entry("16")

"""Plans on disk: what is read is what was written, and anything else is an error that names the file."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mamba_lab.batching import PackingPlan, pack_greedy, pack_sequential


def fields(plan: PackingPlan) -> dict[str, Any]:
    return {name: getattr(plan, name) for name in ("capacity", "offsets", "sequence", "start", "stop", "dropped")}


def write(path: Path, **changes: Any) -> None:
    """A plan's file with some entries changed; None leaves one out."""
    plan = pack_sequential([3, 2, 4], 6)
    values = {name: np.asarray(value) for name, value in (fields(plan) | {"format": 1} | changes).items()}
    np.savez(path, **{name: value for name, value in values.items() if changes.get(name, value) is not None})


@pytest.mark.parametrize("lengths", [[], [3, 0, 9, 2, 2, 121]])
@pytest.mark.parametrize("overflow", ["split", "truncate"])
def test_a_plan_comes_back(tmp_path: Path, lengths: list[int], overflow: Any) -> None:
    plan = pack_greedy(lengths, 8, overflow=overflow)
    for path in (tmp_path / "plan.npz", str(tmp_path / "plan of no suffix")):
        plan.save(path)
        found = fields(PackingPlan.load(path))
        for name, value in fields(plan).items():
            assert type(found[name]) is type(value)
            assert np.array_equal(found[name], value)
            assert np.asarray(found[name]).dtype == np.asarray(value).dtype
    assert sorted(os.listdir(tmp_path)) == ["plan of no suffix", "plan.npz"]


def test_a_failed_save_leaves_the_earlier_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.npz"
    pack_sequential([3], 8).save(path)

    def full(file: Any, **_: Any) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="No space left"):
        pack_sequential([4, 4], 8).save(path)
    assert PackingPlan.load(path).n_tokens == 3
    assert os.listdir(tmp_path) == ["plan.npz"]


def test_a_capacity_beyond_int64_is_not_stored(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="capacity is 9223372036854775808, above the int64 limit"):
        PackingPlan.from_bins([], [], 2**63).save(tmp_path / "plan.npz")


def test_no_file() -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        PackingPlan.load("nowhere.npz")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stop": None, "dropped": None}, "it has no dropped, stop"),
        ({"format": 2}, "its format is 2, and this release reads format 1"),
        ({"capacity": 6.0}, r"capacity is float64 \[\], not one int64"),
        ({"dropped": [0]}, r"dropped is int64 \[1\], not one int64"),
        ({"capacity": 4}, "bin 0 holds 5 tokens, more than the capacity 4"),
        (
            {"sequence": np.zeros(3, np.int32)},
            r"sequence must be a NumPy int64 array of one dimension, got int32 \[3\]",
        ),
        ({"sequence": np.array([0, None, 2], object)}, "allow_pickle"),
    ],
)
def test_other_contents_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = tmp_path / "odd.npz"
    write(path)
    assert PackingPlan.load(path).n_bins == 2
    write(path, **changes)
    with pytest.raises(ValueError, match=f"odd.npz is no plan that PackingPlan.save wrote: .*{message}"):
        PackingPlan.load(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.npz"
    with zipfile.ZipFile(tmp_path / "text.npz", "w") as archive:
        archive.writestr("capacity", "six")
    np.save(tmp_path / "array.npy", np.arange(3))
    contents = [b"", b"capacity = 6", (tmp_path / "array.npy").read_bytes(), (tmp_path / "text.npz").read_bytes()]
    for content in contents:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"other\.npz is no plan that PackingPlan\.save wrote: "):
            PackingPlan.load(path)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_damage_is_found_or_harmless(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("plans") / "plan.npz"
    plan = pack_greedy([3, 0, 9, 2, 2, 12], 12)
    plan.save(path)
    raw = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        del raw[data.draw(st.integers(0, len(raw) - 1)) :]
    else:
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(raw)
    try:
        found = PackingPlan.load(path)
    except ValueError as error:
        assert "plan.npz is no plan" in str(error)  # noqa: PT017
    else:
        assert list(found.bins()) == list(plan.bins())


def test_what_cannot_be_written_is_named_as_it_was_given(tmp_path: Path) -> None:
    plan = pack_sequential([3], 8)
    with pytest.raises(FileNotFoundError, match=r"no such folder.plan\.npz'$"):
        plan.save(tmp_path / "no such folder" / "plan.npz")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(ValueError, match=r"which is no file\. Name the file in it"):
            plan.save(path)
    for wrong in ("", 3, None, b"plan.npz"):
        for call in (plan.save, PackingPlan.load):
            with pytest.raises(ValueError, match="path must be the name of a file, a str or a Path, got"):
                call(wrong)  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == ["pipe"]


def test_a_name_as_long_as_names_can_be(tmp_path: Path) -> None:
    path = tmp_path / ("p" * 251 + ".npz")
    pack_sequential([3], 8).save(path)
    assert PackingPlan.load(path).n_tokens == 3


def test_a_link_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    file, link = tmp_path / "folder" / "file.npz", tmp_path / "link.npz"
    link.symlink_to(Path("folder", "file.npz"))
    for tokens in (3, 4):  # the file is not there at first
        pack_sequential([tokens], 8).save(link)
        assert link.is_symlink()
        assert PackingPlan.load(file).n_tokens == tokens
    assert os.listdir(tmp_path / "folder") == ["file.npz"]

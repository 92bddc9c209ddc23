"""Records name their machine and give nobody away."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import numpy as np
import pytest

from mamba_lab.bench import record
from mamba_lab.bench.record import read_record, write_record
from mamba_lab.bench.timing import time_samples


def test_a_record_comes_back_with_its_circumstances(tmp_path: Path) -> None:
    path = write_record(
        "speed", {"seconds": [0.5, 0.25]}, folder=tmp_path, command=["/usr/bin/mamba-lab", "bench", "x"]
    )
    assert path == tmp_path / "speed.json"
    found = read_record("speed", folder=tmp_path)
    assert found["results"] == {"seconds": [0.5, 0.25]}
    assert found["command"] == "mamba-lab bench x"
    assert found["machine"]["cpu"]
    assert found["machine"]["cores"] >= 1
    assert found["versions"]["torch"]
    assert found["versions"]["python"] == sys.version.split()[0]
    assert found["date"].endswith("+00:00")
    assert [name for name in os.listdir(tmp_path) if name != "speed.json"] == []


def test_the_commit_is_named_in_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import subprocess

    def git(*words: str) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path), *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    (tmp_path / "mamba_lab").mkdir()
    (tmp_path / "mamba_lab" / "a.py").write_text("1")
    git("add", ".")
    git("commit", "-qm", "x")
    monkeypatch.setattr(record, "checkout_root", lambda: tmp_path)
    assert record._commit() == {"commit": git("rev-parse", "HEAD"), "changed": False}
    (tmp_path / "notes.txt").write_text("not measured")
    assert record._commit()["changed"] is False
    (tmp_path / "mamba_lab" / "a.py").write_text("2")
    assert record._commit()["changed"] is True
    monkeypatch.setattr(record, "checkout_root", lambda: None)
    assert record._commit() == {}


def test_a_copy_without_history_is_told_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "checkout_root", lambda: tmp_path)
    monkeypatch.setenv("MAMBA_LAB_COMMIT", "")
    with pytest.raises(ValueError, match="commit is 'a6d66fc', expected the 40 hexadecimal digits"):
        record.told_commit("a6d66fc")
    record.told_commit("a" * 40)
    assert record._commit() == {"commit": "a" * 40, "commit_from": "the caller: these files have no history"}
    here = {"commit": "b" * 40, "changed": False}
    monkeypatch.setattr(record, "_commit_of_history", lambda: here)
    with pytest.raises(ValueError, match=f"given as {'a' * 40}, and this checkout is at {'b' * 40}"):
        record._commit()
    record.told_commit("b" * 40)
    assert record._commit() is here


def test_the_history_of_a_folder_further_up_is_not_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import subprocess

    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path)]
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    (tmp_path / "copy").mkdir()
    monkeypatch.delenv("MAMBA_LAB_COMMIT", raising=False)
    monkeypatch.setattr(record, "checkout_root", lambda: tmp_path / "copy")
    assert record._commit() == {}


def test_numpy_becomes_plain(tmp_path: Path) -> None:
    payload = {"a": np.arange(3), "b": np.float32(0.5), "c": (1, None, True), 4: {"d": np.bool_(False)}}
    write_record("x", payload, folder=tmp_path)
    expected = {"a": [0, 1, 2], "b": 0.5, "c": [1, None, True], "4": {"d": False}}
    assert read_record("x", folder=tmp_path)["results"] == expected


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        ({"a": [1.0, float("nan")]}, r"payload\['a'\]\[1\] is nan"),
        ({"a": {"b": np.inf}}, r"payload\['a'\]\['b'\] is inf"),
        ({"a": np.array([1.0, -np.inf])}, r"payload\['a'\]\[1\] is -inf"),
        ({"a": object()}, r"payload\['a'\] is a object"),
        ({"a": {1, 2}}, r"payload\['a'\] is a set"),
    ],
)
def test_what_json_cannot_say_is_refused_with_its_place(tmp_path: Path, payload: dict[str, object], says: str) -> None:
    write_record("x", {"good": 1}, folder=tmp_path)
    with pytest.raises(ValueError, match=says):
        write_record("x", payload, folder=tmp_path)
    assert read_record("x", folder=tmp_path)["results"] == {"good": 1}


def test_folders_users_and_hosts_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu-node-17")
    monkeypatch.setenv("HOME", "/home/student")
    for private in (f"{sys.prefix}/lib", "ran on gpu-node-17", "/home/student/data"):
        with pytest.raises(ValueError, match="leave folders and host names out"):
            write_record("x", {"note": private}, folder=tmp_path)
    monkeypatch.setattr(record, "_user", lambda: "ada")
    with pytest.raises(ValueError, match="folder of 'ada'"):
        write_record("x", {"note": "/scratch/ada/run"}, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", "../x", "a b", "a/b", "a.json"])
def test_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="use letters, digits"):
        write_record(name, {}, folder=tmp_path)
    with pytest.raises(ValueError, match="use letters, digits"):
        read_record(name, folder=tmp_path)


def test_missing_and_damaged_records(tmp_path: Path) -> None:
    write_record("there", {}, folder=tmp_path)
    with pytest.raises(ValueError, match=r"name is 'absent'.*records: there"):
        read_record("absent", folder=tmp_path)
    (tmp_path / "half.json").write_text('{"results": ')
    (tmp_path / "other.json").write_text("[1]")
    for name in ("half", "other"):
        with pytest.raises(ValueError, match=f"damaged.*mamba-lab bench {name}"):
            read_record(name, folder=tmp_path)


def test_every_stored_record_is_whole_and_gives_nobody_away() -> None:
    from mamba_lab.paths import data_dir

    for path in (data_dir() / "results").glob("*.json"):
        found = read_record(path.stem)
        assert {"name", "date", "command", "machine", "versions", "results"} <= set(found), path.name
        assert "/home/" not in path.read_text()
        assert "/root/" not in path.read_text()
        assert json.dumps(found, allow_nan=False)


def test_time_samples_keeps_every_sample_and_not_the_warm_up() -> None:
    calls = []
    samples = time_samples(lambda: calls.append(1), 3, warm_up=2)
    assert len(samples) == 3
    assert len(calls) == 5
    assert min(samples) >= 0
    with pytest.raises(ValueError, match="repeats is 0"):
        time_samples(list, 0)

"""Many processes, a shared cache that cannot be written, a builder that dies: case 29."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from native_workshop import PLAIN, STALL, Workshop

from mamba_lab.log import log_once
from mamba_lab.ops import build, cache
from mamba_lab.ops.build import NativeUnavailable, build_library, load_library

CHILD = """
import sys
from pathlib import Path
from mamba_lab.ops import build, native_sources
native_sources.csrc_dir = lambda: Path(sys.argv[1])
built = build.build_library("plain")
print(built.compiled, built.path)
"""


def start(workshop: Workshop, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(workshop.csrc)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **env},
        start_new_session=True,
    )


def test_six_processes_at_once_compile_once(workshop: Workshop) -> None:
    cxx = workshop.compiler(before="sleep 1")  # long enough for all to find the cache empty
    children = [start(workshop, CXX=cxx) for _ in range(6)]
    said = [child.communicate(timeout=120) for child in children]
    assert [child.returncode for child in children] == [0] * 6, said
    assert workshop.compilations == 1
    assert sorted(out.split()[0] for out, _ in said) == ["False"] * 5 + ["True"]
    assert len({out.split()[1] for out, _ in said}) == 1
    assert cache.is_whole(workshop.libraries(workshop.private)[0])


def test_a_killed_builder_frees_the_lock_and_leaves_nothing(workshop: Workshop) -> None:
    child = start(workshop, CXX=workshop.compiler(before=STALL))
    folder = workshop.private / "native" / "cpu"
    try:
        deadline = time.monotonic() + 60
        while not list(folder.glob(".plain-*.tmp.so")):
            assert time.monotonic() < deadline
            assert child.poll() is None
            time.sleep(0.02)
        with (folder / "plain.lock").open("a") as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.kill(child.pid, signal.SIGKILL)
        child.wait(timeout=10)
        workshop.compiler()
        started = time.monotonic()
        built = build_library("plain")
        assert built.compiled
        assert time.monotonic() - started < 20
        assert list(folder.glob(".plain-*")) == []
    finally:
        os.killpg(child.pid, signal.SIGKILL)  # the stalled compiler outlives its parent
        child.communicate()


def test_waiting_is_said_once_and_has_an_end(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cache, "SAY_AFTER_SECONDS", 0.1)
    monkeypatch.setattr(cache, "GIVE_UP_AFTER_SECONDS", 0.5)
    lock = workshop.private / "native" / "cpu" / "plain.lock"
    started = time.monotonic()
    with cache.open_lock(lock) as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with (
            caplog.at_level(logging.WARNING, "mamba_lab"),
            pytest.raises(NativeUnavailable, match=r"another process has held the lock(.|\n)*Remedy: end that process"),
        ):
            build_library("plain")
    assert time.monotonic() - started < 10
    assert caplog.text.count("waiting for another process that is building the C++ library 'plain'") == 1
    monkeypatch.setattr(build, "_failed", {})
    assert build_library("plain").compiled


def test_a_file_system_without_locks_still_builds(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with caplog.at_level(logging.WARNING, "mamba_lab"):
        assert build_library("plain").compiled
    assert "no locks" in caplog.text


def test_the_shared_cache_is_written_where_it_can_be(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = workshop.folder / "shared"
    monkeypatch.setenv("MAMBA_LAB_CACHE", str(shared))
    assert shared in build_library("plain").path.parents
    assert workshop.libraries(workshop.private) == []


def test_the_shared_cache_is_read_first(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    private = build_library("plain").path
    shared = workshop.folder / "shared"
    shutil.copytree(workshop.private, shared)
    monkeypatch.setenv("MAMBA_LAB_CACHE", str(shared))
    found = build_library("plain")
    assert not found.compiled
    assert shared in found.path.parents
    assert found.path.name == private.name


def test_a_shared_cache_that_cannot_exist_gives_way_to_the_private_one(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Below a regular file no folder can be made, whoever asks: permission bits would not stop root.
    (workshop.folder / "file").write_text("")
    monkeypatch.setenv("MAMBA_LAB_CACHE", str(workshop.folder / "file" / "shared"))
    assert workshop.private in build_library("plain").path.parents


def test_no_cache_can_be_written(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    (workshop.folder / "file").write_text("")
    monkeypatch.setenv("MAMBA_LAB_CACHE", str(workshop.folder / "file" / "shared"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(workshop.folder / "file" / "home"))
    with pytest.raises(NativeUnavailable, match=r"no cache can be written(.|\n)*Remedy: .*MAMBA_LAB_CACHE") as caught:
        build_library("plain")
    assert "file/shared" in str(caught.value)
    assert "file/home" in str(caught.value)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


def test_permission_bits_that_forbid_writing(open_folder: Path) -> None:
    """The real thing: a class's cache owned by the host, read by a student without rights to it.

    The child drops root's rights when it has them. It compiles without PyTorch's folders, which that user may not read.
    """
    shop = Workshop(open_folder)
    shop.compiler()
    (shop.home).mkdir()
    shop.counter.touch()
    shop.counter.chmod(0o666)
    shared = open_folder / "shared"
    shop.write("extra", PLAIN + "// built by the student\n")
    script = textwrap.dedent(
        """
        import fcntl, os, sys
        from pathlib import Path
        from mamba_lab.ops import build, compiling, native_sources
        root = Path(sys.argv[1])
        native_sources.csrc_dir = lambda: root / "csrc"
        compiling.compile_command = lambda c, s, o, d: [*c.command, "-shared", "-fPIC", str(s), "-o", str(o)]
        assert build.build_library("plain").compiled
        for path in (root / "shared", *(root / "shared").rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        # A lock that anyone may write, in a folder that takes no new file: the lock alone must not pass for a cache.
        lock = root / "shared" / "native" / "cpu" / "extra.lock"
        lock.parent.chmod(0o755)
        lock.touch()
        lock.chmod(0o666)
        lock.parent.chmod(0o555)
        if os.geteuid() == 0:
            os.chown(root / "home", 65534, 65534)
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        try:
            (root / "shared" / "probe").touch()
        except PermissionError:
            pass
        else:
            sys.exit("the shared cache is not read-only, so this proves nothing")
        found, own = build.build_library("plain"), build.build_library("extra")
        print(found.compiled, found.path.relative_to(root).parts[0])
        print(own.compiled, own.path.relative_to(root).parts[0])
        for path in (root / "shared", *(root / "shared").rglob("*")):
            if os.stat(path).st_uid == os.geteuid():
                path.chmod(0o755)
        """
    )
    env = {
        **os.environ,
        "CXX": str(open_folder / "counting-cxx"),
        "MAMBA_LAB_CACHE": str(shared),
        "XDG_CACHE_HOME": str(shop.home),
    }
    command = [sys.executable, "-c", script, str(open_folder)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["False shared", "True home"]
    assert shop.compilations == 2


def test_a_reader_without_a_compiler_uses_what_the_host_built(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = workshop.folder / "shared"
    built = build_library("plain", roots=[shared])
    monkeypatch.setenv("MAMBA_LAB_CACHE", str(shared))
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert load_library("plain") == built.path
    workshop.write("plain", PLAIN + "// another source\n")
    with pytest.raises(NativeUnavailable, match="CXX"):
        build_library("plain")


def test_a_whole_library_that_does_not_load_is_built_here(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shared = workshop.folder / "shared"
    good = build_library("plain", roots=[shared]).path
    foreign = workshop.folder / "foreign.so"
    foreign.write_bytes(b"\x7fELF of another system")
    cache.publish(foreign, good, {})
    assert cache.is_whole(good)
    real = cache.open_lock

    def read_only(path: Path) -> object:
        if shared in path.parents:
            raise OSError(errno.EROFS, "Read-only file system")
        return real(path)

    monkeypatch.setattr(cache, "open_lock", read_only)
    monkeypatch.setenv("MAMBA_LAB_CACHE", str(shared))
    with caplog.at_level(logging.WARNING, "mamba_lab"):
        assert workshop.private in load_library("plain").parents
    assert "does not load here" in caplog.text


def test_a_fresh_library_that_does_not_load_says_so(workshop: Workshop) -> None:
    workshop.write("dangling", "void nowhere(); struct A { A() { nowhere(); } } a;\n")
    with pytest.raises(NativeUnavailable, match=r"does not load: .*nowhere(.|\n)*Remedy: "):
        load_library("dangling")


@pytest.mark.parametrize("value", ["", "relative/folder"])
def test_xdg_cache_home_counts_only_when_absolute(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", value)
    monkeypatch.setenv("HOME", "/home/reader")
    monkeypatch.delenv("MAMBA_LAB_CACHE", raising=False)
    assert cache.cache_roots() == [Path("/home/reader/.cache/mamba_lab")]


def test_one_folder_named_twice_is_one_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("MAMBA_LAB_CACHE", str(tmp_path / "mamba_lab"))
    assert cache.cache_roots() == [tmp_path / "mamba_lab"]


@pytest.mark.parametrize("value", ["~nosuchuser/cache", "file"])
def test_a_shared_cache_that_cannot_be_used_is_said_once_and_left_out(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("MAMBA_LAB_CACHE", value if value.startswith("~") else str(tmp_path / value))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "private"))
    log_once.cache_clear()
    with caplog.at_level("WARNING", logger="mamba_lab"):
        assert cache.cache_roots() == cache.cache_roots() == [tmp_path / "private" / "mamba_lab"]
    assert len(caplog.messages) == 1
    assert "MAMBA_LAB_CACHE" in caplog.text


def test_a_shared_cache_that_may_not_be_entered_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def forbidden(self: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setenv("MAMBA_LAB_CACHE", str(tmp_path / "closed"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "private"))
    monkeypatch.setattr(Path, "exists", forbidden)
    log_once.cache_clear()
    assert cache.cache_roots() == [tmp_path / "private" / "mamba_lab"]
    assert "Permission denied" in caplog.text

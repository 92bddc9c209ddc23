"""Compiling on first use: what is built, when it is built again, and what is said when it cannot be."""

from __future__ import annotations

import ctypes
import logging
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from native_workshop import BROKEN, PLAIN, STALL, Workshop

from mamba_lab.ops import build, cache, compiling, toolchain
from mamba_lab.ops.build import NativeUnavailable, build_library, load_library

STABLE = """
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
using torch::stable::Tensor;
Tensor NAME(const Tensor& x) {
  Tensor y = torch::stable::empty_like(x);
  const auto* in = static_cast<const int64_t*>(x.data_ptr());
  auto* out = static_cast<int64_t*>(y.data_ptr());
  torch::stable::parallel_for(0, x.numel(), 1024, [&](int64_t a, int64_t b) {
    for (int64_t i = a; i < b; ++i) out[i] = 2 * in[i];
  });
  return y;
}
STABLE_TORCH_LIBRARY_FRAGMENT(mamba_lab_tests, m) { m.def("NAME(Tensor x) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(mamba_lab_tests, CPU, m) { m.impl("NAME", TORCH_BOX(&NAME)); }
"""
COMPILERS = [name for name in ("g++", "clang++") if shutil.which(name)]


def test_some_compiler_is_tested() -> None:
    assert COMPILERS, "the tests need g++ or clang++: apt-get install g++"


@pytest.mark.parametrize("compiler", COMPILERS)
def test_an_operator_on_the_stable_abi_runs(workshop: Workshop, monkeypatch: pytest.MonkeyPatch, compiler: str) -> None:
    monkeypatch.setenv("CXX", compiler)
    name = "twice_by_" + compiler.replace("+", "p")
    workshop.write(name, STABLE.replace("NAME", name))
    path = load_library(name)
    x = torch.arange(5000)
    assert torch.equal(getattr(torch.ops.mamba_lab_tests, name)(x), 2 * x)
    assert load_library(name) == path  # a second time in one process
    assert path.parent == workshop.private / "native" / "cpu"
    # Nothing of this environment is baked in: another one with the same processor may load it.
    assert str(toolchain.torch_folder()).encode() not in path.read_bytes()


def test_the_first_call_compiles_and_the_next_process_reads(workshop: Workshop) -> None:
    first = build_library("plain")
    assert first.compiled
    assert first.seconds > 0
    second = build_library("plain")
    assert not second.compiled
    assert second.path == first.path
    assert workshop.compilations == 1
    assert ctypes.CDLL(str(first.path)).answer() == 42


def test_loading_twice_compiles_once_and_opens_once(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(torch.ops, "load_library", opened.append)
    assert load_library("plain") == load_library("plain")
    workshop.write("plain", PLAIN + "// edited\n")  # a process cannot unload: the edit waits for the next one
    load_library("plain")
    assert len(opened) == 1
    assert workshop.compilations == 1


def test_everything_a_library_depends_on_is_in_its_name(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [build_library("plain").path.name]

    def builds_anew(what: str) -> None:
        built = build_library("plain")
        assert built.compiled, f"a change of {what} must build again"
        assert built.path.name not in names
        names.append(built.path.name)

    workshop.write("plain", PLAIN + "// edited\n")
    builds_anew("the source")
    (workshop.csrc / "common.h").write_text("#pragma once\n")
    builds_anew("the headers: a new one")
    (workshop.csrc / "common.h").write_text("#pragma once\nconst int n = 1;\n")
    builds_anew("the headers: their text")
    monkeypatch.setattr(build, "processor", lambda: "another processor")
    builds_anew("the processor")
    monkeypatch.setattr(build, "TORCH_TARGET", "0x020b000000000000")
    builds_anew("the target version")
    compiler = toolchain.find_cxx()
    for field, value in (("version", "99"), ("flags", (*compiler.flags, "-g")), ("command", (*compiler.command, "-g"))):
        changed = toolchain.Compiler(**{**vars(compiler), field: value})
        monkeypatch.setattr(build, "find_cxx", lambda changed=changed: changed)
        builds_anew(f"the compiler's {field}")


def test_the_version_of_torch_is_not_in_the_name(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build_library("plain")
    monkeypatch.setattr(torch, "__version__", "2.14.0")
    monkeypatch.setattr(compiling, "torch_folder", lambda: Path("/another/environment/torch"))
    assert build_library("plain").path == first.path


@pytest.mark.parametrize("damage", ["truncated", "one byte", "no note", "note is no JSON", "note is a list"])
def test_a_damaged_library_is_found_and_rebuilt(
    workshop: Workshop, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    path = build_library("plain").path
    note = path.with_name(path.name + ".json")
    whole = path.read_bytes()
    if damage == "truncated":
        path.write_bytes(whole[: len(whole) // 2])
    elif damage == "one byte":
        path.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    elif damage == "no note":
        note.unlink()
    else:
        note.write_text("{" if damage == "note is no JSON" else "[]")
    with caplog.at_level(logging.WARNING, "mamba_lab"):
        again = build_library("plain")
    assert again.compiled
    assert again.path == path
    assert ctypes.CDLL(str(path)).answer() == 42
    assert "damaged" in caplog.text


def test_a_crash_between_note_and_library_counts_as_damage(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    old = build_library("plain").path
    temporary = old.with_name("half.so")
    temporary.write_bytes(b"a newer build")
    with monkeypatch.context() as crash:
        replace = cache.os.replace

        def dies_second(source: Path, target: Path) -> None:
            if Path(target) == old:
                raise KeyboardInterrupt
            replace(source, target)

        crash.setattr(cache.os, "replace", dies_second)
        with pytest.raises(KeyboardInterrupt):
            cache.publish(temporary, old, {})
    assert not cache.is_whole(old)
    assert build_library("plain").compiled


def test_a_failing_compiler_is_quoted_and_asked_once(workshop: Workshop) -> None:
    workshop.write("broken", BROKEN)
    with pytest.raises(NativeUnavailable) as caught:
        build_library("broken")
    message = str(caught.value)
    assert "'broken'" in message
    assert "fortytwo" in message  # the compiler's own words
    assert "broken.cpp:1" in message
    assert message.count("Remedy: ") == 1
    with pytest.raises(NativeUnavailable, match="fortytwo"):
        build_library("broken")
    assert workshop.compilations == 1
    assert [path.name for path in (workshop.private / "native" / "cpu").iterdir()] == ["broken.lock"]


def test_a_long_complaint_is_cut_after_its_beginning(workshop: Workshop) -> None:
    workshop.write("broken", "\n".join(f"int a{i} = b{i};" for i in range(100)))
    with pytest.raises(NativeUnavailable, match=r"b0(.|\n)*\.\.\. and \d+ more lines"):
        build_library("broken")


def test_a_compiler_that_says_yes_and_writes_nothing_has_failed(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", workshop.compiler(program="/bin/true"))
    with pytest.raises(NativeUnavailable, match="exit code 0"):
        build_library("plain")


def test_a_compiler_that_hangs_is_stopped(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", workshop.compiler(before=STALL))
    monkeypatch.setattr(compiling, "COMPILE_SECONDS", 0.3)
    with pytest.raises(NativeUnavailable, match=r"longer than 0\.3 s"):
        build_library("plain")
    assert [path.name for path in (workshop.private / "native" / "cpu").iterdir()] == ["plain.lock"]


@pytest.mark.usefixtures("no_compiler")
def test_no_compiler(workshop: Workshop, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(NativeUnavailable, match=r"no C\+\+ compiler found(.|\n)*Remedy: .*apt-get install g\+\+"):
        load_library("plain")
    with caplog.at_level(logging.WARNING, "mamba_lab"):
        assert build.available("plain") is False
        assert build.available("plain") is False
    assert caplog.text.count("no C++ compiler found") == 1


def test_cxx_names_a_program_that_is_not_there(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -O0")
    with pytest.raises(NativeUnavailable, match=r"CXX is 'no-such-compiler -O0'(.|\n)*Remedy: unset CXX"):
        build_library("plain")


def test_cxx_may_hold_arguments(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    workshop.write("macro", 'extern "C" int answer() { return ANSWER; }\n')
    monkeypatch.setenv("CXX", workshop.compiler() + " -DANSWER=7")
    assert ctypes.CDLL(str(build_library("macro").path)).answer() == 7


def test_march_native_is_left_out_where_it_is_refused(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "-march=native" in toolchain.find_cxx().flags or "x86" not in toolchain.processor()
    refuses = workshop.folder / "refusing-cxx"
    refuses.write_text(f'#!/bin/sh\ncase "$*" in *-march=native*) exit 1 ;; esac\nexec {workshop.compiler()} "$@"\n')
    refuses.chmod(0o755)
    monkeypatch.setenv("CXX", str(refuses))
    assert "-march=native" not in toolchain.find_cxx().flags
    assert build_library("plain").compiled


def test_available_builds_and_says_yes(workshop: Workshop) -> None:
    assert build.available("plain") is True
    assert workshop.compilations == 1


def test_mistakes_are_named(workshop: Workshop) -> None:
    with pytest.raises(ValueError, match=r"name is 'plian'.*plain"):
        load_library("plian")
    with pytest.raises(ValueError, match=r"name is 'plian'"):
        build.available("plian")
    with pytest.raises(ValueError, match=r"device is 'xpu'.*'cpu' and 'cuda'"):
        load_library("plain", "xpu")


def test_the_error_crosses_process_boundaries() -> None:
    error = NativeUnavailable("a library", "a reason", "a remedy")
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.why, copy.remedy) == (str(error), "a reason", "a remedy")


def test_a_full_disk_blames_the_cache_and_tries_the_next(
    workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler fails either way; whose fault it is decides the remedy."""
    workshop.write("broken", BROKEN)
    full = tmp_path / "full"
    monkeypatch.setattr(build, "_full", lambda root: root == full)
    with pytest.raises(NativeUnavailable, match=r"no space left(.|\n)*MAMBA_LAB_CACHE"):
        build_library("broken", roots=[full])
    with pytest.raises(NativeUnavailable, match="failed with exit code"):
        build_library("broken", roots=[full, tmp_path / "roomy"])


def test_the_space_of_a_cache_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not build._full(tmp_path)
    monkeypatch.setattr(build, "SMALLEST_SPACE", 1 << 62)
    assert build._full(tmp_path)
    assert not build._full(tmp_path / "missing")


def test_a_cxx_that_cannot_be_read_is_named(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    workshop.write("plain", PLAIN)
    monkeypatch.setenv("CXX", 'g++ "')
    with pytest.raises(NativeUnavailable, match=r"CXX is .* cannot be read (.|\n)*unset CXX"):
        build_library("plain", roots=[workshop.private])

"""Does a class fit? Arithmetic on hosts made up for the purpose, and the sizes it rests on, measured here."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from mamba_lab.doctor import class_report, classroom, run
from mamba_lab.doctor.classroom import Host

BIG = Host(cores=128, memory=500_000, disk=500_000, gpu_memory=(), cuda=False)


def rows(host: Host, students: int = 30) -> dict[str, tuple[str, str, str]]:
    return {row.part: (row.state, row.found, row.remedy) for row in class_report(students, host)}


def test_a_big_host_takes_thirty() -> None:
    report = class_report(30, BIG)
    assert report.ok
    assert report.verdict.startswith("A class of 30 fits.")


def test_memory_decides_to_the_student() -> None:
    each = classroom.SERVER_MIB + 4 * classroom.KERNEL_MIB + classroom.WORK_MIB
    base = classroom.HOST_MIB + classroom.SHARED_MIB
    exact = Host(**{**vars(BIG), "memory": base + 30 * each})
    assert class_report(30, exact).ok
    short = class_report(30, Host(**{**vars(BIG), "memory": base + 30 * each - 1}))
    assert not short.ok
    assert short.verdict == "29 of 30 students fit: memory is the limit."
    assert "shut kernels down" in short[0].remedy
    assert class_report(30, Host(**{**vars(BIG), "memory": 10})).verdict.startswith("0 of 30")


def test_gpu_memory_counts_each_gpu_by_itself() -> None:
    each = 4 * classroom.CONTEXT_MIB + classroom.GPU_WORK_MIB
    # Two GPUs of one and a half students each hold two students, not three.
    host = Host(**{**vars(BIG), "cuda": True, "gpu_memory": (each * 3 // 2, each * 3 // 2)})
    assert class_report(2, host).ok
    report = class_report(3, host)
    assert report.verdict == "2 of 3 students fit: GPU memory is the limit."
    assert "CUDA_VISIBLE_DEVICES=" in rows(host, 3)["GPU memory"][2]
    assert "GPU memory" not in rows(BIG)


def test_kernels_on_a_gpu_host_need_more_memory() -> None:
    host = Host(**{**vars(BIG), "cuda": True, "gpu_memory": (10**6,), "memory": 30_000})
    assert rows(host, 10)["memory"][0] == "broken"
    assert rows(Host(**{**vars(host), "cuda": False}), 10)["memory"][0] == "ok"


def test_disk() -> None:
    host = Host(**{**vars(BIG), "disk": 30 * classroom.STUDENT_DISK_MIB - 1})
    assert rows(host)["disk"][0] == "broken"
    assert class_report(30, host).verdict == "29 of 30 students fit: disk is the limit."


def test_what_is_unknown_is_a_note() -> None:
    found = rows(Host(cores=4, memory=None, disk=None, gpu_memory=(), cuda=False))
    assert found["memory"][0] == found["disk"][0] == "note"
    assert "needed" in found["memory"][1]


def test_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert rows(BIG)["cores"][2] == "export OMP_NUM_THREADS=4 before starting JupyterLab"
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert rows(BIG)["cores"][0] == "ok"
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert rows(BIG)["cores"][0] == "note"
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    state, found, _ = rows(Host(**{**vars(BIG), "cores": 2}))["cores"]
    assert state == "note"
    assert "15 times as long" in found


def test_the_shared_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from mamba_lab.ops import native_sources, prebuild

    csrc = tmp_path / "csrc"
    (csrc / "cpu").mkdir(parents=True)
    (csrc / "cpu" / "plain.cpp").write_text('extern "C" int answer() { return 42; }\n')
    monkeypatch.setattr(native_sources, "csrc_dir", lambda: csrc)
    monkeypatch.delenv("MAMBA_LAB_CACHE", raising=False)
    assert rows(BIG)["shared cache"][:2] == ("note", "none: every student's home compiles for itself")
    monkeypatch.setenv("MAMBA_LAB_CACHE", str(tmp_path / "shared"))
    assert rows(BIG)["shared cache"][1] == "MAMBA_LAB_CACHE lacks plain"
    assert prebuild.run(cache=tmp_path / "shared", device="cpu") == 0
    assert "cpu/plain: compiled in" in capsys.readouterr().out
    assert rows(BIG)["shared cache"][0] == "ok"


def test_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classroom, "this_host", lambda: BIG)
    assert run(students=30) == 0
    monkeypatch.setattr(classroom, "this_host", lambda: Host(**{**vars(BIG), "memory": 3000}))
    assert run(students=30) == 1


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="Linux tells private from shared memory")
def test_a_kernel_is_no_larger_than_assumed() -> None:
    """What a kernel adds over its start-up, measured again. The constants must not fall behind the package."""
    script = """
import torch, mamba_lab.ops, mamba_lab.batching, mamba_lab.models, ipykernel.kernelapp
import matplotlib; matplotlib.use("agg")
import matplotlib.pyplot as plt
plt.plot([1, 2]); plt.savefig("/dev/null", format="png")
weight = torch.randn(256, 256, requires_grad=True)
(weight @ weight).sum().backward()
print(open("/proc/self/smaps_rollup").read())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    kib = {name: int(value) for name, value in re.findall(r"^(\w+):\s+(\d+) kB", done.stdout, re.MULTILINE)}
    private = (kib["Private_Clean"] + kib["Private_Dirty"]) / 1024
    import torch

    # With no second process the shared libraries count as private too; a CUDA build brings larger ones.
    assumed = classroom.KERNEL_MIB + classroom.SHARED_MIB if torch.version.cuda is None else classroom.KERNEL_CUDA_MIB
    assert assumed / 3 < private < assumed * 1.15

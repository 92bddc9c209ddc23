"""The CUDA kernels under NVIDIA's compute-sanitizer, on a GPU host: `python tests/ops/sanitize.py`.

memcheck finds accesses outside of what was allocated, racecheck finds threads of a block that touch the same shared
memory without a barrier between. Sizes are small: both tools make a kernel hundreds of times slower.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

TOOLS = ("memcheck", "racecheck", "initcheck")
LENGTHS = (5, 70, 0, 1, 33, 64, 2, 130)
# With so many channels a GPU has more to do: the scan's launchers take other plans, step by step.
MANY, MANY_CHANNELS = (33, 1, 5) * 22, (448, 1024, 2048)
CALLS = {"conv1d_pack": [(64, 4), (37, 4), (264, 3), (40, 7)], "ssm_pack": [(64, 16), (37, 16), (264, 16), (40, 5)]}


def run_kernels() -> None:
    """Both operators forward and backward, channels that fill tiles and channels that do not, all optional inputs."""
    import torch
    from kernel_cases import OPTIONS, made, run_on

    for name, sizes in CALLS.items():
        for D, size in sizes:
            for dtype in (torch.bfloat16, torch.float32):
                for without in ((), ("initial_state", "z", "D", "delta_bias", "bias")):
                    case = made(name, LENGTHS, D, size, dtype, without=without, device="cuda")
                    run_on(name, "cuda", LENGTHS, case, **OPTIONS[name][0])
    for D in MANY_CHANNELS:
        for dtype in (torch.bfloat16, torch.float32):
            case = made("ssm_pack", MANY, D, 16, dtype, without=(), device="cuda")
            run_on("ssm_pack", "cuda", MANY, case, **OPTIONS["ssm_pack"][0])
    torch.cuda.synchronize()


def main() -> int:
    program = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if program is None:
        print("There is no compute-sanitizer here: it comes with the CUDA toolkit.", file=sys.stderr)
        return 2
    # PyTorch keeps freed memory to use it again; then an access beyond a tensor would hit another one unseen.
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    failed = 0
    for tool in sys.argv[1:] or TOOLS[:2]:
        options = ["--tool", tool, "--kernel-name", "kernel_substring=mamba_lab", "--error-exitcode", "9"]
        done = subprocess.run([program, *options, sys.executable, str(Path(__file__)), "--run"], env=environment)
        print(f"{tool}: {'clean' if done.returncode == 0 else f'exit code {done.returncode}'}", flush=True)
        failed |= done.returncode != 0
    return failed


if __name__ == "__main__":
    if sys.argv[1:] == ["--run"]:
        run_kernels()
    else:
        sys.exit(main())

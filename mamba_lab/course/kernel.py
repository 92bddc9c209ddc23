"""`python -m mamba_lab.course.kernel`: an IPython kernel whose crash in native code tells where, on the real stderr.

ipykernel puts a pipe in place of stderr, and what faulthandler writes into it is lost with the process.
"""

from __future__ import annotations

import faulthandler
import os
import runpy

if __name__ == "__main__":
    faulthandler.enable(os.fdopen(os.dup(2), "w"), all_threads=False)
    runpy.run_module("ipykernel_launcher", run_name="__main__", alter_sys=True)

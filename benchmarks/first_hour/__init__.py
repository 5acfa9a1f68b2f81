"""What is checked and measured on a GPU: programs, and an ordered list of steps. See gpu.md.

`PERSEUS_BENCHMARK_STAND_IN` names a file of Python that is executed before any program, such as a stand-in for CUDA.
"""

import os
import runpy

if _stand_in := os.environ.get("PERSEUS_BENCHMARK_STAND_IN"):
    runpy.run_path(_stand_in)

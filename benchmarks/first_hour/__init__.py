"""Programs that check and measure this library on a GPU, and the ordered list of steps that run them. See gpu.md.

`PERSEUS_BENCHMARK_STAND_IN` names a file of Python that is executed before any program, such as a stand-in for CUDA.
"""

import os
import runpy

if _stand_in := os.environ.get("PERSEUS_BENCHMARK_STAND_IN"):
    runpy.run_path(_stand_in)

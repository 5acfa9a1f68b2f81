"""Runs another benchmark with its ranks on several hosts, which are network namespaces without limits: needs root.

    python -m benchmarks.on_hosts --hosts 2 --ranks 1 benchmarks.torch_distributed [OPTIONS OF THE BENCHMARK]

perseusrun starts the ranks, and UCX connects the hosts.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))
from tests.hosts.links import why_unsupported
from tests.hosts.network_test_bed import NetworkTestBed

from . import ROOT


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=2, help="number of hosts (default %(default)s)")
    parser.add_argument("--ranks", type=int, default=1, help="ranks on each host (default %(default)s)")
    parser.add_argument("module", help="the benchmark, such as benchmarks.tensor_parallel")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the benchmark")
    options = parser.parse_args()
    if reason := why_unsupported():
        raise SystemExit(f"no network-namespace test bed: {reason}")
    with NetworkTestBed(options.hosts) as test_bed:
        slots = dict.fromkeys(test_bed.hosts, options.ranks)
        line = test_bed.perseusrun(slots, "--no-prefix", folder=ROOT)
        program = [sys.executable, "-m", options.module, *options.arguments]
        # vLLM itself finds its address only if there is a route to the Internet.
        chosen = {"PERSEUS_HOST_TRANSPORT": "ucx", "VLLM_HOST_IP": test_bed.address(test_bed.hosts[0])}
        environment = {**chosen, **os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.run([*line, *program], env=environment, stdin=subprocess.DEVNULL, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

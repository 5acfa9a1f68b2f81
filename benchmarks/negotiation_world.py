"""The program of each rank of benchmarks.negotiation: barriers, and steps of many tensors without elements."""

from __future__ import annotations

import json
import os
import statistics
import time
from pathlib import Path

import numpy as np

RESULT_VARIABLE = "PERSEUS_NEGOTIATION_RESULT"
TENSORS = (1, 100, 1000)
SENT = Path("/sys/class/net/eth0/statistics/tx_bytes")
BARRIERS, STEPS = 300, 20


def main() -> None:
    import perseus_like.numpy as hvd

    hvd.init()

    def step(count: int) -> None:
        handles = [hvd.allreduce_async(np.empty(0, np.float32), name=f"{count}.{i}") for i in range(count)]
        for handle in handles:
            hvd.synchronize(handle)

    def sent_by(count: int) -> float:
        """Returns the bytes that this host sends in a step, after the response cache knows the tensors."""
        for _ in range(3):
            step(count)
        hvd.barrier()
        before = int(SENT.read_text())
        for _ in range(STEPS):
            step(count)
        hvd.barrier()
        return (int(SENT.read_text()) - before) / STEPS

    sent = {count: sent_by(count) for count in TENSORS}
    times = []
    for _ in range(BARRIERS):
        begin = time.perf_counter()
        hvd.barrier()
        times.append(time.perf_counter() - begin)
    if hvd.rank() == 0:
        Path(os.environ[RESULT_VARIABLE]).write_text(json.dumps({"barrier": statistics.median(times), "bytes": sent}))
    hvd.shutdown()


if __name__ == "__main__":
    main()

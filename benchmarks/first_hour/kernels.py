"""Runs the packing kernels over all pairs of types, offsets from 0 to 15, and one tensor beyond 2**31 elements.

    perseusrun -np 1 compute-sanitizer --tool memcheck python -m benchmarks.first_hour.kernels
    perseusrun -np 1 compute-sanitizer --tool initcheck python -m benchmarks.first_hour.kernels --no-large

There is no profiler in it, which the sanitizer does not get on with. Results are compared with torch's own on the host.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch

import perseus_like.torch as hvd

from .ranks import sized, start

INTEGERS = (torch.uint8, torch.int8, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
WIRES = {"none": None, "fp16": torch.float16, "bf16": torch.bfloat16}
COUNTS = (1, 5, 33, 40_001)


def pieces(dtype: torch.dtype, offset: int) -> list[torch.Tensor]:
    """Returns tensors whose memory begins `offset` elements after an aligned address."""
    bases = [torch.arange(offset + count, device="cuda").remainder(11).to(dtype) for count in COUNTS]
    return [base[offset:] for base in bases]


def expected(tensor: torch.Tensor, wire: torch.dtype | None) -> torch.Tensor:
    on_host = tensor.cpu() * hvd.size()
    if not tensor.is_floating_point():
        return (on_host * 2).to(tensor.dtype)
    scaled = on_host * 0.5
    return scaled if wire is None else scaled.to(wire).to(tensor.dtype)


def pack_all(offset: int) -> int:
    """Returns the number of combinations."""
    combinations: list[tuple[torch.dtype, str]] = [(dtype, "none") for dtype in (*INTEGERS, *FLOATS)]
    combinations += [(dtype, wire) for dtype in (torch.float32, torch.float64) for wire in ("fp16", "bf16")]
    for dtype, wire in combinations:
        tensors = pieces(dtype, offset)
        factor = 0.5 if dtype.is_floating_point else 2.0
        options: dict[str, Any] = {"op": hvd.Sum, "prescale_factor": factor}
        compression = getattr(hvd.Compression, wire)
        results = hvd.grouped_allreduce(tensors, name=f"{dtype} {wire}", compression=compression, **options)
        for result, tensor in zip(results, tensors, strict=True):
            wanted = expected(tensor, WIRES[wire])
            if not torch.allclose(result.cpu().double(), wanted.double(), rtol=1e-3, atol=1e-3):
                raise SystemExit(f"{dtype} over {wire} at offset {offset}: {result[:8]} in place of {wanted[:8]}")
    return len(combinations)


def pack_large() -> None:
    """Packs a tensor whose elements 32 bits cannot count, beside a small one."""
    count = 2**31 + 17
    large = torch.ones(count, dtype=torch.uint8, device="cuda")
    large[-17:] = 3
    small = torch.full((5,), 7, dtype=torch.uint8, device="cuda")
    results = hvd.grouped_allreduce([small, large], op=hvd.Sum, name="large")
    totals = int(results[1][-17:].sum()), int(results[1][:1000].sum()), results[0].tolist()
    if totals != (51 * hvd.size(), 1000 * hvd.size(), [7 * hvd.size()] * 5):
        raise SystemExit(f"a tensor of {count} elements: {totals}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-large", action="store_true", help="leave out the tensor beyond 2**31 elements")
    chosen = parser.parse_args()
    start(apart=False)
    combinations = sum(pack_all(offset) for offset in range(sized(16, 1)))
    if not chosen.no_large and sized(True, False):
        pack_large()
    torch.cuda.synchronize()
    print(f"{combinations} combinations of types and offsets are right", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()

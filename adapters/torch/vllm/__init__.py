"""vLLM on CPUs over this library.

    VLLM_PLUGINS=perseus vllm serve MODEL --tensor-parallel-size 2

vLLM imports this module while it looks for its platform, so the communicator has a module of its own.
"""

from __future__ import annotations

from vllm.platforms.cpu import CpuPlatform


class PerseusCpuPlatform(CpuPlatform):  # type: ignore[misc]
    """vLLM's platform on CPUs. Its groups have the backend `perseus`, and communicate by `PerseusCommunicator`."""

    dist_backend = "perseus"

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        return f"{__name__}.communicator.PerseusCommunicator"

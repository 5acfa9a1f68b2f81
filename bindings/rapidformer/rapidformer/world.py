"""The processes of the job: their start, their devices, and the groups that divide data, layers and stages."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from perseus_like import torch as hvd
from perseus_like.torch.distributed.job_variables import export_world


@dataclass
class World:
    """This process among the others. The mesh has dimensions pp (stages), dp (replicas) and tp (parts of a layer)."""

    rank: int
    size: int
    device: torch.device
    mesh: DeviceMesh

    def group(self, dimension: str) -> dist.ProcessGroup:
        return self.mesh[dimension].get_group()

    def rank_in(self, dimension: str) -> int:
        return int(self.mesh[dimension].get_local_rank())

    def size_of(self, dimension: str) -> int:
        return int(self.mesh[dimension].size())


_world: World | None = None


def join() -> tuple[int, int]:
    """Joins the job over NCCL on GPUs, over perseus elsewhere. Returns rank and number of processes."""
    if not dist.is_initialized():
        if torch.cuda.is_available():
            if not dist.is_torchelastic_launched():
                hvd.init()
                export_world()
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
            dist.init_process_group("nccl")
        else:
            dist.init_process_group("perseus")
    return dist.get_rank(), dist.get_world_size()


def start(tensor: int = 1, pipeline: int = 1) -> World:
    """Makes the groups, once. Every process of the job calls it."""
    global _world
    if _world is None:
        rank, size = join()
        kind = "cuda" if torch.cuda.is_available() else "cpu"
        shape = (pipeline, size // (tensor * pipeline), tensor)
        mesh = init_device_mesh(kind, shape, mesh_dim_names=("pp", "dp", "tp"))
        device = torch.device(kind, torch.cuda.current_device()) if kind == "cuda" else torch.device("cpu")
        _world = World(rank, size, device, mesh)
    return _world


def current() -> World:
    """Returns the world that RapidformerEngine() started."""
    if _world is None:
        raise RuntimeError("there is no world yet; create a RapidformerEngine() first")
    return _world


def stop() -> None:
    """Leaves the job, in order."""
    global _world
    _world = None
    if dist.is_initialized():
        dist.destroy_process_group()

"""Registers the backend name `perseus` with torch.distributed.

torch loads this package at the end of `import torch`, by the entry point `torch.backends`, in every program. It
therefore imports nothing of perseus_like until a process group is made, and it logs errors instead of raising them. It
is installed as a top-level package beside `perseus_like`, because importing `perseus_like` would take too long.

torch behaves as without this package, with two exceptions. In a process that a launcher has started, `env://` also
finds the other ranks if MASTER_ADDR or the rank is not set, and on one host its store is a private file. With
PERSEUS_AS_GLOO=1, the name `gloo` means this backend.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from . import as_gloo, compat, local_store

NAME = "perseus"
# The launchers whose ranks find each other set at least one of these. perseus_like/launchers.py has all that they set.
LAUNCHER_VARIABLES = (
    *("PERSEUS_RENDEZVOUS", "PERSEUS_ELASTIC", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "PMIX_RANK"),
    *("SLURM_STEP_NUM_TASKS", "FLUX_TASK_RANK", "JSM_NAMESPACE_RANK", "PERSEUS_TCP_RENDEZVOUS"),
)

logger = logging.getLogger("perseus_like")


def register(name: str = NAME) -> None:
    """Registers the backend as `perseus`, and also as `name`. Never raises; a second call does nothing."""
    try:
        import torch.distributed as dist

        if dist.is_available():
            _register(dist, name)
    except Exception as error:
        logger.debug("the torch.distributed backend %r is not registered: %s", name, error)


def vllm_platform() -> str | None:
    """Returns the name of the platform with which vLLM communicates by this library, if VLLM_PLUGINS asks for it.

    vLLM calls this by the entry point `vllm.platform_plugins`. After None it takes its own platform.
    """
    if NAME not in os.environ.get("VLLM_PLUGINS", "").split(","):
        return None  # vLLM loads all plugins if the variable is not set
    from vllm.platforms import cpu_platform_plugin

    is_plain_cpu = cpu_platform_plugin() == "vllm.platforms.cpu.CpuPlatform"
    return "perseus_like.torch.vllm.PerseusCpuPlatform" if is_plain_cpu else None


def sglang_plugin() -> None:
    """Makes sglang's groups communicate by this library, if SGLANG_PLUGINS asks for it.

    sglang calls this by the entry point `sglang.srt.plugins`.
    """
    if NAME not in os.environ.get("SGLANG_PLUGINS", "").split(","):
        return  # sglang loads all plugins if the variable is not set
    import torch.distributed as dist

    from perseus_like.torch import sglang

    use_as_gloo(dist)
    sglang.register()


def _register(dist: Any, name: str) -> None:
    is_first = not compat.is_registered(dist, NAME)
    for each in dict.fromkeys((NAME, name)):
        if not compat.is_registered(dist, each):
            dist.Backend.register_backend(each, partial(_create, each), extended_api=True, devices=["cpu", "cuda"])
    if is_first and any(variable in os.environ for variable in LAUNCHER_VARIABLES):
        compat.replace_env_handler(dist, lambda original: partial(_rendezvous, original))
    if as_gloo.is_asked_for():
        _turn_on_as_gloo(dist)


def _turn_on_as_gloo(dist: Any) -> None:
    try:
        use_as_gloo(dist)
    except Exception as error:
        logger.warning("%s has no effect, and gloo stays torch's own: %s", as_gloo.VARIABLE, error)


def use_as_gloo(dist: Any) -> None:
    """Makes the backend `gloo` of torch.distributed mean this one. Errors: AttributeError if torch has changed."""
    as_gloo.turn_on(dist, partial(_create, as_gloo.NAME))


def _rendezvous(original: Callable[..., Iterator[Any]], url: str, *arguments: Any, **options: Any) -> Iterator[Any]:
    """Handles `env://` by torch's own handler, unless the launcher has to help."""
    if local_store.is_wanted(url):
        return local_store.rendezvous(url, *arguments, **options)
    if "MASTER_ADDR" in os.environ and all(local_store.fact(url, name) for name in ("rank", "world_size")):
        return original(url, *arguments, **options)
    from perseus_like.torch.distributed import job_variables

    return job_variables.rendezvous(original, url, *arguments, **options)


def _create(name: str, options: Any, backend_options: Any) -> Any:
    from perseus_like.torch.distributed.device_groups import create

    return create(options, backend_options, name.lower())

"""Checks that a framework does not change when it is imported beside an installed perseus_like."""

from __future__ import annotations

import importlib.metadata
import os
import sys
import textwrap

import pytest
from perseus_like_autoload import LAUNCHER_VARIABLES, sglang_plugin, vllm_platform

from tests.job import needs, run_to_end, succeeded

# Prints the attributes that differ between two moments, of each module and each class of a framework. The entries of a
# dictionary count as attributes.
COMPARE = """
import os, sys, types

def attributes(framework):
    found = {}
    def add(where, holder):
        for name, value in list(vars(holder).items()):
            found[f"{where}.{name}"] = value
            if isinstance(value, dict) and name != "__builtins__":
                found.update({f"{where}.{name}[{key!r}]": entry for key, entry in list(value.items())})
    for module in [each for name, each in sorted(sys.modules.items()) if name.partition(".")[0] == framework]:
        if isinstance(module, types.ModuleType):
            add(module.__name__, module)
            for each in [each for each in list(vars(module).values()) if isinstance(each, type)]:
                if str(each.__module__).partition(".")[0] == framework:
                    add(f"{each.__module__}.{each.__qualname__}", each)
    return found

def report(before, after):
    for name in sorted(before):
        if name not in after or after[name] is not before[name] and after[name] != before[name]:
            print(name)
"""


def changes(text: str, **environment: str) -> list[str]:
    """Runs a program that calls `report`. Returns the names of the attributes that changed."""
    outer = {name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES}
    variables = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "TF_CPP_MIN_LOG_LEVEL": "3", **environment}
    line = [sys.executable, "-c", COMPARE + textwrap.dedent(text)]
    done = succeeded(run_to_end(line, inherited=outer | variables))
    return done.stdout.split("\n")[:-1]


TORCH = """
import torch
import torch.distributed as dist
before = attributes("torch")
known = set(dist.Backend.backend_list)
import perseus_like_autoload
perseus_like_autoload.register()
after = attributes("torch")
report(before, after)
assert set(dist.Backend.backend_list) - known == {"perseus"}, dist.Backend.backend_list
assert "perseus_like" not in sys.modules
"""


def test_torch_gets_a_backend_name_and_no_other_change() -> None:
    needs("torch")
    assert changes(TORCH) == []


@pytest.mark.parametrize("variable", ["PERSEUS_RENDEZVOUS", "PMI_SIZE"])
def test_torch_gets_one_handler_in_a_process_of_a_launcher(variable: str) -> None:
    needs("torch")
    expected = ["torch.distributed.rendezvous._rendezvous_handlers['env']"]
    assert changes(TORCH, **{variable: "1"}) == expected


@pytest.mark.slow
def test_torch_whose_gloo_is_ours() -> None:
    """With PERSEUS_AS_GLOO=1, torch learns one more name, and one of its methods is replaced."""
    needs("torch")
    learns = TORCH.replace('{"perseus"}', '{"perseus", "perseus_as_gloo"}')
    method = "torch.distributed.distributed_c10d.BackendConfig.get_device_backend_map"
    assert changes(learns, PERSEUS_AS_GLOO="1") == [method]
    assert changes(TORCH, PERSEUS_AS_GLOO="0") == []


TENSORFLOW = """
import tensorflow as tf
before = attributes("tensorflow")
import perseus_like.tensorflow as hvd
imported = attributes("tensorflow")
report(before, imported)
print("then init")
hvd.init()
report(imported, attributes("tensorflow"))
"""
XLA_CONTEXT = "tensorflow.python.ops.control_flow_ops.XLAControlFlowContext"


def test_tensorflow_changes_only_at_init() -> None:
    needs("tensorflow")
    assert changes(TENSORFLOW) == [
        "then init",
        "tensorflow.python.autograph.core.config.CONVERSION_RULES",
        f"{XLA_CONTEXT}.AddOp",
        f"{XLA_CONTEXT}.RequiresUniqueFunctionRetracing",
    ]


@pytest.mark.parametrize("plugins", [None, "", "lora_filesystem_resolver"])
def test_vllm_keeps_its_platform_unless_its_plugins_name_this_library(
    plugins: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM loads the entry points of all packages if VLLM_PLUGINS is not set."""
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    if plugins is not None:
        monkeypatch.setenv("VLLM_PLUGINS", plugins)
    (entry,) = importlib.metadata.entry_points(group="vllm.platform_plugins", name="perseus")
    assert entry.load() is vllm_platform
    assert vllm_platform() is None


@pytest.mark.parametrize("plugins", [None, "", "another"])
def test_sglang_stays_as_it_is_unless_its_plugins_name_this_library(
    plugins: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sglang loads the entry points of all packages if SGLANG_PLUGINS is not set."""
    monkeypatch.delenv("SGLANG_PLUGINS", raising=False)
    if plugins is not None:
        monkeypatch.setenv("SGLANG_PLUGINS", plugins)
    (entry,) = importlib.metadata.entry_points(group="sglang.srt.plugins", name="perseus")
    assert entry.load() is sglang_plugin
    monkeypatch.setattr("sys.path", [])  # an import of sglang or of the adapter fails
    sglang_plugin()

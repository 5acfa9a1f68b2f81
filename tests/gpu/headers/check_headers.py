"""Holds our declarations of CUDA's driver and of NCCL against the real headers, and opens each real libnccl.

    make check-gpu-headers

The headers and libraries are those of wheels in the package index, several versions of each. No GPU is needed: static
assertions are compiled, and NCCL is opened by our own loader. The functions to compare are read from the sources that
look them up, so that none can be forgotten.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
CSRC = ROOT / "csrc"
NCCL = ("nvidia-nccl-cu12==2.18.3", "nvidia-nccl-cu12==2.21.5", "nvidia-nccl-cu12==2.27.7", "nvidia-nccl-cu13==2.29.7")
CUDA = ("nvidia-cuda-runtime-cu12==12.1.105", "nvidia-cuda-runtime-cu12==12.9.79", "nvidia-cuda-runtime==13.0.96")
CUDA_CONSTANTS = ("cuda_device.cc", "cuda_kernels.cc", "memory_pool.cc", "cuda_driver.h")  # have constants
COMPILER = ("c++", "-std=c++20", "-Wall", "-Werror", f"-I{CSRC}", f"-I{HERE}")

NCCL_VALUES = """
static_assert(sizeof(ncclUniqueId) <= UniqueId::kBytes);
static_assert(int(DataType::int8) == ncclInt8 && int(DataType::uint8) == ncclUint8);
static_assert(int(DataType::int32) == ncclInt32 && int(DataType::int64) == ncclInt64);
static_assert(int(DataType::float16) == ncclFloat16 && int(DataType::bfloat16) == ncclBfloat16);
static_assert(int(DataType::float32) == ncclFloat32 && int(DataType::float64) == ncclFloat64);
static_assert(kSum == ncclSum && kProduct == ncclProd && kMax == ncclMax && kMin == ncclMin);
static_assert(kFirstOwnOp == ncclNumOps && kScalarOnHost == ncclScalarHostImmediate);
static_assert(kSuccess == ncclSuccess && Traits{}.in_progress == ncclInProgress);
"""
# NCCL reads CommConfig as its ncclConfig_t.
COMM_CONFIG = """
constexpr ncclConfig_t kConfig = NCCL_CONFIG_INITIALIZER;
static_assert(sizeof(CommConfig) <= sizeof kConfig && CommConfig{}.magic == kConfig.magic);
static_assert(CommConfig{}.version <= NCCL_VERSION_CODE && CommConfig::kUndefined == NCCL_CONFIG_UNDEF_INT);
static_assert(offsetof(CommConfig, size) == offsetof(ncclConfig_t, size));
static_assert(offsetof(CommConfig, magic) == offsetof(ncclConfig_t, magic));
static_assert(offsetof(CommConfig, version) == offsetof(ncclConfig_t, version));
static_assert(offsetof(CommConfig, blocking) == offsetof(ncclConfig_t, blocking));
static_assert(offsetof(CommConfig, net_name) == offsetof(ncclConfig_t, netName));
static_assert(offsetof(CommConfig, split_share) == offsetof(ncclConfig_t, splitShare));
"""

ROW = r"(?m)^  (?:REQUIRED|OPTIONAL)\("  # the beginning of a row in a table of functions
# The release of NCCL that is the first to have a function.
NCCL_SINCE = {"comm_register": "2, 19", "comm_deregister": "2, 19", "comm_revoke": "2, 29"}
# The driver reads PoolProperties as its CUmemPoolProps.
POOL_PROPERTIES = """
static_assert(sizeof(PoolProperties) == sizeof(CUmemPoolProps) && alignof(PoolProperties) == alignof(CUmemPoolProps));
static_assert(offsetof(PoolProperties, allocation_type) == offsetof(CUmemPoolProps, allocType));
static_assert(offsetof(PoolProperties, handle_types) == offsetof(CUmemPoolProps, handleTypes));
constexpr auto kLocation = offsetof(CUmemPoolProps, location);
static_assert(offsetof(PoolProperties, location_type) == kLocation + offsetof(CUmemLocation, type));
static_assert(offsetof(PoolProperties, device) == kLocation + offsetof(CUmemLocation, id));
static_assert(offsetof(PoolProperties, security) == offsetof(CUmemPoolProps, win32SecurityAttributes));
static_assert(sizeof(CUmemAllocationType) == sizeof(int) && sizeof(CUmemAllocationHandleType) == sizeof(int));
static_assert(sizeof(CUmemLocationType) == sizeof(int) && sizeof(cuuint64_t) == sizeof(std::uint64_t));
"""


def nccl_assertions() -> str:
    """Returns a program that compiles if our table of functions is NCCL's."""
    header = _source("transport/xccl/functions.h")
    found = re.findall(r'(?:REQUIRED|OPTIONAL)\([^,]+, (\w+), "(\w+)", ', header)
    assert len(found) == len(re.findall(ROW, header)), "a row of the table is not understood"
    lines = [
        f"#if NCCL_VERSION_CODE >= NCCL_VERSION({NCCL_SINCE.get(member, '2, 13')}, 0)\n"
        f"SAME(Functions, {member}, nccl{name});\n#endif"
        for member, name in found
        if member != "all_to_all"  # oneCCL's alone
    ]
    lines += [
        "#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 29, 0)",
        "static_assert(kRevokeDefault == NCCL_REVOKE_DEFAULT);",
        "#endif",
    ]
    return _program(
        ["nccl.h", "transport/xccl/libraries/library.h"], "perseus::xccl", [*lines, NCCL_VALUES, COMM_CONFIG]
    )


def cuda_assertions() -> str:
    """Returns a program that compiles if our table of functions is the driver's."""
    header = _source("device/cuda/cuda_driver.h")
    found = re.findall(r'(?:REQUIRED|OPTIONAL)\((\w+), "(\w+)", ', header)
    assert len(found) == len(re.findall(ROW, header)), "a row of the table is not understood"
    lines = [f"SAME(Driver, {member}, {name});" for member, name in found]
    # Constants whose comment begins with the driver's name of them.
    constants = re.findall(
        r"= (\d+); +// ((?:CU_?\w+)(?: \| CU_\w+)*)",
        "".join(_source(f"device/cuda/{name}") for name in CUDA_CONSTANTS),
    )
    assert len(constants) >= 11, constants
    lines += [f"static_assert({value} == ({name}));" for value, name in constants]
    lines += ["static_assert(kSuccess == CUDA_SUCCESS && kNotReady == CUDA_ERROR_NOT_READY);"]
    lines += ["static_assert(sizeof(Pointer) == sizeof(CUdeviceptr) && sizeof(DeviceNumber) == sizeof(CUdevice));"]
    return _program(["cstddef", "cuda.h", "device/cuda/cuda_driver.h"], "perseus::cuda", [*lines, POOL_PROPERTIES])


def _source(name: str) -> str:
    return (CSRC / name).read_text()


def _program(headers: list[str], namespace: str, lines: Iterable[str]) -> str:
    same = (
        "#define SAME(Table, member, function) \\\n"
        "  static_assert(perseus::testing::SameCall<decltype(Table::member), decltype(&function)>::value, #function)\n"
    )
    includes = "".join(f"#include <{name}>\n" for name in (*headers, "same_calls.h"))
    return f"{includes}{same}using namespace {namespace};\n" + "\n".join(lines) + "\n"


def compiles(program: str, *folders: Path) -> str:
    """Returns the compiler's errors; nothing if it accepts the program."""
    includes = [f"-I{folder}" for folder in folders]
    line = [*COMPILER, *includes, "-fsyntax-only", "-x", "c++", "-"]
    return subprocess.run(line, input=program, text=True, capture_output=True).stderr


def installed(wheel: str, folder: Path) -> Path | None:
    """Installs a wheel into a folder of its own, and returns it; None if pip cannot."""
    target = folder / wheel
    if not target.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), wheel]
        if subprocess.run(pip).returncode != 0:
            return None
    return target


def includes_of(target: Path, header: str) -> list[Path]:
    return sorted(file.parent for file in target.rglob(header))


def report(what: str, trouble: str) -> bool:
    print(f"{'FAIL' if trouble else 'pass'}  {what}{': ' + trouble if trouble else ''}", flush=True)
    return not trouble


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=ROOT / "build/gpu-headers", help="keeps the wheels")
    parser.add_argument("--core", type=Path, default=ROOT / "build/core/libperseus_core.a", help="the built core")
    chosen = parser.parse_args()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    loader = chosen.folder / "load_nccl"
    line = [*COMPILER, str(HERE / "load_nccl.cc"), str(chosen.core), "-ldl", "-pthread", "-o", str(loader)]
    subprocess.run(line, check=True)
    passed, absent = [], []
    folders = {wheel: installed(wheel, chosen.folder) for wheel in (*CUDA, *NCCL)}
    for wheel, target in folders.items():
        if target is None:
            absent.append(wheel)
        elif wheel in CUDA:
            passed.append(report(f"cuda.h of {wheel}", compiles(cuda_assertions(), *includes_of(target, "cuda.h"))))
        else:
            header = includes_of(target, "nccl.h")
            passed.append(report(f"nccl.h of {wheel}", compiles(nccl_assertions(), *header, HERE / "runtime")))
            library = next(iter(target.rglob("libnccl.so.2")))
            opened = subprocess.run([str(loader), str(library)], text=True, capture_output=True)
            passed.append(report(f"libnccl of {wheel}", "" if opened.returncode == 0 else opened.stdout.strip()))
    for wheel in absent:
        print(f"skip  {wheel}: pip does not find it")
    return 0 if passed and all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())

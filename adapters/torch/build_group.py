"""`python -m perseus_like.torch.build_group`: compiles the process group in C++ for the installed torch.

The wheel contains nothing that is compiled against torch, so this is a step of its own. It needs a C++ compiler and
ninja, as torch.compile does. Afterwards, all process groups of the backend `perseus` of this user use the module.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from . import native_group


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0, or 1 if the module is not there or cannot be compiled."""
    parser = argparse.ArgumentParser(prog="python -m perseus_like.torch.build_group", description=__doc__)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--check", action="store_true", help="print whether the module is used, and compile nothing")
    how.add_argument("--remove", action="store_true", help="remove the modules for all releases of torch")
    options = parser.parse_args(arguments)
    if options.remove:
        shutil.rmtree(native_group.folder(), ignore_errors=True)
        print(f"removed {native_group.folder()}")
        return 0
    return _check() if options.check else _build()


def _check() -> int:
    used = native_group.load() is not None
    state = "used" if used else "not used"
    print(f"torch {torch.__version__}: the process group in C++ is {state}: {native_group.path()}")
    return 0 if used else 1


def _build() -> int:
    file = native_group.path()
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent) as building:
        try:
            built = _compile(Path(building))
            native_group.load_file(built)
        except (ImportError, OSError, RuntimeError) as error:
            print(
                f"the process group in C++ cannot be compiled for torch {torch.__version__}: {error}", file=sys.stderr
            )
            print("It needs a C++ compiler (CXX, or c++) and ninja (pip install ninja).", file=sys.stderr)
            return 1
        built.replace(file)  # processes that start meanwhile find the whole file or none
    print(f"torch {torch.__version__}: {file}")
    return 0


def _compile(folder: Path) -> Path:
    from torch.utils import cpp_extension

    cpp_extension.load(
        name=native_group.NAME,
        sources=[str(native_group.SOURCE)],
        extra_include_paths=[str(native_group.INCLUDES)],
        extra_cflags=["-O2"],
        build_directory=str(folder),
        is_python_module=False,
    )
    return folder / f"{native_group.NAME}.so"


if __name__ == "__main__":
    sys.exit(main())

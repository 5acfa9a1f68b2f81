"""Build of perseus_like: the C++ core by CMake, and adapters/ installed as perseus_like.<framework>."""

import os
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel

ROOT = Path(__file__).parent.resolve()
COMPILED = Path(os.environ["PERSEUS_COMPILED"]).resolve() if os.environ.get("PERSEUS_COMPILED") else None


def adapter_packages() -> dict[str, str]:
    """Each package below adapters/ under the name it is installed by: perseus_like.torch → adapters/torch."""
    names = find_packages(str(ROOT / "adapters"), exclude=["torch.distributed.autoload"])  # perseus_like_autoload
    return {f"perseus_like.{name}": f"adapters/{name.replace('.', '/')}" for name in names}


def tree(folder: str) -> list[Path]:
    """All files below a folder of the project, relative to its root."""
    return sorted(file.relative_to(ROOT) for file in (ROOT / folder).rglob("*") if file.is_file())


def natives() -> list[Path]:
    """The folders of code that lives inside a framework, relative to the project's root: adapters/*/native."""
    return sorted(folder.relative_to(ROOT) for folder in (ROOT / "adapters").glob("*/native"))


class CMakeExtension(Extension):
    """A module whose sources and flags CMakeLists.txt knows, and the target that makes it.

    `depends` is what an sdist needs of it.
    """

    def __init__(self, name: str, target: str, built: Callable[[str], str]) -> None:
        files = [Path("CMakeLists.txt"), Path("adapters/__init__.py"), *tree("cmake"), *tree("csrc")]
        inside = [tree(name) for folder in natives() for name in (folder.as_posix(), f"{folder.parent}/compat")]
        files += [file for found in inside for file in found if file.suffix in (".cc", ".h")]
        super().__init__(name, sources=[], depends=[file.as_posix() for file in files])
        self.target = target
        self.built = built  # the built file in the build folder, from the name of the module's file


def extensions() -> list[Extension]:
    """The core, and what lives inside a framework, which is no Python module: its name has no suffix."""
    core = CMakeExtension("perseus_like._core", "_core", lambda file: file)
    inside = [
        CMakeExtension(
            f"perseus_like.{folder.parent.name}._native",
            f"perseus_{folder.parent.name}",
            lambda _, framework=folder.parent.name: f"native/{framework}/_native.so",
        )
        for folder in natives()
    ]
    return [core, *inside]


class BuildPy(build_py):
    """Starts from an empty folder: setuptools would ship files that an earlier build left in build/lib.

    Editors read docstrings from the source, so those that are made at import are written into the wheel's.
    """

    def run(self) -> None:
        if not self.editable_mode:
            for package in ("perseus_like", "perseus", "perseus_like_autoload"):
                shutil.rmtree(Path(self.build_lib) / package, ignore_errors=True)
        super().run()
        if not self.editable_mode:
            runpy.run_path(str(ROOT / "docs/write_docstrings.py"))["write_docstrings"](Path(self.build_lib))


class EditableWheel(editable_wheel):
    """`pip install -e .` makes a folder of links in the installed layout, in place of a list of folders.

    The sources have another layout (perseus_like.torch lies in adapters/torch), and the source folder `perseus_like`
    hides nothing this way. New files are seen after another `pip install -e .`.
    """

    def finalize_options(self) -> None:
        super().finalize_options()
        self.mode = self.mode or "strict"


class BdistWheel(bdist_wheel):
    """Names a wheel of compiled modules after their Python and system, not after those that run this file."""

    def get_tag(self) -> tuple[str, str, str]:
        if COMPILED:
            python, abi, system = COMPILED.name.split("-")
            return python, abi, system
        return super().get_tag()


class CMakeBuild(build_ext):
    """Builds in a folder that stays, so that a second build compiles what changed.

    Honours CMAKE_ARGS, and PERSEUS_BUILD_FOLDER (else below build/temp*, or build/editable for an editable install).
    PERSEUS_COMPILED is a folder of modules that wheels/build.py has compiled; its name is the tag of the wheel.
    """

    def run(self) -> None:
        if self.editable_mode:
            self.inplace = False  # a compiled core in the source folder would make it look like the package
        super().run()

    def build_extension(self, ext: Extension) -> None:
        if not isinstance(ext, CMakeExtension):
            super().build_extension(ext)
            return
        folder = COMPILED or self.compile(ext)
        module = Path(self.get_ext_fullpath(ext.name))
        module.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(folder / ext.built(module.name), module)

    def compile(self, ext: CMakeExtension) -> Path:
        """Returns the build folder, with the compiled module in it."""
        default = ROOT / "build" / "editable" if self.editable_mode else Path(self.build_temp) / "cmake"
        folder = Path(os.environ.get("PERSEUS_BUILD_FOLDER") or default).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        cmake = tool("cmake")
        subprocess.check_call([cmake, "-S", str(ROOT), "-B", str(folder), *self.configure_args()])
        subprocess.check_call([cmake, "--build", str(folder), "--target", ext.target])
        return folder

    def get_ext_filename(self, fullname: str) -> str:
        if fullname.rpartition(".")[2] == "_native":
            return f"{fullname.replace('.', '/')}.so"
        if COMPILED:
            (file,) = COMPILED.glob("_core.*.so")
            return f"{fullname.replace('.', '/')}{file.name.removeprefix('_core')}"
        return super().get_ext_filename(fullname)

    def configure_args(self) -> list[str]:
        import pybind11

        return [
            "-GNinja",
            f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
            f"-DPERSEUS_VERSION={self.distribution.get_version()}",
            f"-DCMAKE_BUILD_TYPE={'Debug' if self.debug else 'Release'}",
            "-DPERSEUS_BUILD_PYTHON=ON",
            # A compiler we have not seen may warn of more; `make` turns this on for us.
            "-DPERSEUS_WERROR=OFF",
            *shlex.split(os.environ.get("CMAKE_ARGS", "")),
        ]


def tool(name: str) -> str:
    """Path of cmake or ninja: beside Python in a venv that has them, on PATH when pip brought them for this build."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise SystemExit(f"{name} is not found; pip installs it as a build requirement, or: pip install {name}")
    return found


# Packages that are installed elsewhere than they lie.
MOVED = {
    **adapter_packages(),
    "perseus": "perseus_like/names/perseus",
    # Loaded by every `import torch`: a package of its own, so that it loads nothing else.
    "perseus_like_autoload": "adapters/torch/distributed/autoload",
    # Headers that python -m perseus_like.torch.build_group compiles against.
    "perseus_like.torch.native_group.capi": "csrc/capi",
    "perseus_like.torch.native_group.base": "csrc/base",
}
DATA = {
    "perseus_like": ["py.typed", "*.pyi"],
    "perseus_like.launch.command_line": ["troubleshooting.md"],
    "perseus_like.names": ["*.json"],
    "perseus_like.torch.native_group": ["*.cc"],
    "perseus_like.torch.native_group.capi": ["perseus.h"],
    "perseus_like.torch.native_group.base": ["tables.h"],
}
OWN = find_packages(str(ROOT), include=["perseus_like", "perseus_like.*"], exclude=["perseus_like.names.perseus"])
# Lies in a folder that is no package, so that this folder alone can be put on the search path.
OWN.append("perseus_like.names.horovod.horovod")

setup(
    packages=[*OWN, *MOVED],
    package_dir=MOVED,
    package_data=DATA,
    ext_modules=extensions(),
    cmdclass={"build_py": BuildPy, "build_ext": CMakeBuild, "bdist_wheel": BdistWheel, "editable_wheel": EditableWheel},
)

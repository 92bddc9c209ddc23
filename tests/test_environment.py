"""Each set of dependencies suffices for what it is for, and the environment files agree with pyproject.toml."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from mamba_lab.doctor import checks

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def _owners() -> dict[str, set[str]]:
    """From a module to the distributions that bring it.

    ``packages_distributions`` of Python 3.10 misses those that have no ``top_level.txt``.
    """
    found: dict[str, set[str]] = {}
    for distribution in metadata.distributions():
        tops = {file.parts[0] for file in distribution.files or () if file.suffix in (".py", ".so", ".pyd")}
        named = (distribution.read_text("top_level.txt") or "").split()
        for top in {top.partition(".")[0] for top in tops} | set(named):
            found.setdefault(top, set()).add(canonicalize_name(distribution.metadata["Name"]))
    return found


OWNERS = _owners()

CORE = ["mamba_lab", "mamba_lab.ops", "mamba_lab.batching", "mamba_lab.models", "mamba_lab.lengths"]
CORE += ["mamba_lab.models.tiny", "mamba_lab.models.checkpoint", "mamba_lab.models.generate"]
CORE += ["mamba_lab.ops.build", "mamba_lab.ops.prebuild", "mamba_lab.doctor", "mamba_lab.cli"]
TRAIN = ["mamba_lab.corpus", "mamba_lab.tokenizer", "mamba_lab.example", "mamba_lab.bench.batching", "datasets", "tqdm"]
TRAIN += ["mamba_lab.bench.packing", "mamba_lab.training", "mamba_lab.training.config_file", "torch.utils.tensorboard"]
TRAIN += ["mamba_lab.train_command", "mamba_lab.generate_command"]
DEV = ["build", "editables", "hatchling", "hypothesis", "mypy", "nbval", "pre_commit", "pytest", "xdist"]

CHILD = """
import importlib, importlib.abc, json, pkgutil, sys
job = json.load(sys.stdin)
refused = set(job["refused"])

class Hides(importlib.abc.MetaPathFinder):
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        # None, not an error: a package that asks whether another one is there must hear "no".
        return None if name.partition(".")[0] in refused else self.finder.find_spec(name, path, target)
    def __getattr__(self, name):
        return getattr(self.finder, name)

for name in list(sys.modules):  # what site and .pth files imported before us
    if name.partition(".")[0] in refused:
        del sys.modules[name]
sys.meta_path[:] = [Hides(finder) for finder in sys.meta_path]
modules = job["modules"]
if "*" in modules:
    import mamba_lab
    names = [name for _, name, _ in pkgutil.walk_packages(mamba_lab.__path__, "mamba_lab.")]
    # The kernels are written in Triton's language: they are imported at the first call, where Triton is.
    modules = [name for name in names if not name.startswith("mamba_lab.ops.triton")]
for name in modules:
    importlib.import_module(name)
try:
    importlib.import_module(job["control"])
except ModuleNotFoundError:
    pass
else:
    sys.exit("nothing is hidden")
print(len(modules))
"""


def closure(requirements: list[str]) -> set[str]:
    """The distributions that pip would install for these requirements, by canonical name."""
    done: set[tuple[str, str]] = set()
    waiting = [Requirement(line) for line in requirements]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        for extra in ("", *requirement.extras):
            if (name, extra) in done:
                continue
            done.add((name, extra))
            if name == "mamba-lab":
                lines = EXTRAS[extra] if extra else PROJECT["dependencies"]
            else:
                lines = metadata.requires(name) or []
            for line in lines:
                needed = Requirement(line)
                if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                    waiting.append(needed)
    return {name for name, _ in done}


def import_under(requirements: list[str], modules: list[str], control: str) -> int:
    """Import modules in a process that sees only the closure of some requirements; return how many."""
    allowed = closure([*requirements, "mamba-lab"])
    refused = [module for module, owners in OWNERS.items() if not allowed & owners]
    assert control in refused
    job = json.dumps({"refused": refused, "modules": modules, "control": control})
    command = [sys.executable, "-c", CHILD]
    done = subprocess.run(command, input=job, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


def test_the_core_is_torch_and_numpy() -> None:
    assert [Requirement(line).name for line in PROJECT["dependencies"]] == ["torch", "numpy"]


def test_the_core_imports_with_nothing_but_the_core() -> None:
    assert import_under([], CORE, control="tokenizers") == len(CORE)


def test_training_says_which_extra_it_needs() -> None:
    with pytest.raises(AssertionError, match=r"needs \w+: pip install 'mamba-lab\[train\]'"):
        import_under([], ["mamba_lab.training"], control="tokenizers")


def test_the_core_starts_without_the_compiler() -> None:
    """PyTorch's compiler and Triton take seconds to import, and every command and notebook would wait for them."""
    code = "import sys, mamba_lab.models, mamba_lab.ops; print({'torch._dynamo', 'triton'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180)
    assert done.stdout.strip() == "set()", done.stdout + done.stderr


def test_the_extra_train_suffices_for_data_and_records() -> None:
    assert import_under(["mamba-lab[train]"], CORE + TRAIN, control="matplotlib") == len(CORE + TRAIN)


def test_the_extra_course_suffices_for_every_module() -> None:
    assert import_under(["mamba-lab[course]"], ["*"], control="hypothesis") > 30


def test_the_extra_dev_brings_what_the_tests_import() -> None:
    declared = closure(["mamba-lab[dev]"])
    used = {module for path in (ROOT / "tests").rglob("*.py") for module in _imported(path)}
    for module in sorted({*used, *DEV} & {*OWNERS, *DEV}):
        assert OWNERS[module] & declared, f"the tests import {module}, which the extra dev does not bring"


def _imported(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and node.level == 0]
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("extra", sorted(EXTRAS))
def test_what_is_installed_is_what_is_asked_for(extra: str) -> None:
    for line in EXTRAS[extra] + PROJECT["dependencies"]:
        requirement = Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue  # not asked for by this Python or system
        version = checks.version_of(requirement.name)
        if version is None:
            assert extra == "peers", f"{requirement.name} is not installed: make setup"
            continue
        assert requirement.specifier.contains(version, prereleases=True), f"{requirement} against {version}"
        assert requirement.specifier or requirement.name == "mamba-lab", f"{line} has no bounds"


def test_extras_build_on_each_other() -> None:
    assert closure(["mamba-lab[train]"]) <= closure(["mamba-lab[course]"]) <= closure(["mamba-lab[dev]"])


def test_the_installed_metadata_is_that_of_pyproject() -> None:
    declared = {str(Requirement(line)) for line in PROJECT["dependencies"]}
    installed = {str(Requirement(line)) for line in metadata.requires("mamba-lab") or [] if "extra" not in line}
    assert installed == declared, "pyproject.toml changed after the installation: make setup"


def load(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / name).read_text())
    return found


@pytest.mark.parametrize("name", ["environment.yml", "environment-peers.yml"])
def test_environment_files(name: str) -> None:
    found = load(name)
    assert found["channels"] == ["conda-forge"]
    dependencies = found["dependencies"]
    python = next(line for line in dependencies if isinstance(line, str) and line.startswith("python="))
    assert SpecifierSet(PROJECT["requires-python"]).contains(python.removeprefix("python=") + ".0")
    assert "pip" in dependencies
    pip = next(line["pip"] for line in dependencies if isinstance(line, dict))
    own = [line for line in pip if line.startswith("-e ")]
    assert len(own) == 1
    extras = re.fullmatch(r"-e \.\[([\w,]+)\]", own[0])
    assert extras is not None
    assert set(extras[1].split(",")) <= set(EXTRAS)
    for line in pip:
        if not line.startswith("-e "):
            Requirement(line)


def test_the_course_needs_no_peer() -> None:
    text = (ROOT / "environment.yml").read_text()
    for peer in ("mamba-ssm", "causal-conv1d", "mambapy", "trl"):
        assert peer not in text
        assert peer not in closure(["mamba-lab[course]", "mamba-lab[dev]"])


def test_the_peers_file_says_how_to_build_them() -> None:
    text = (ROOT / "environment-peers.yml").read_text()
    for words in (
        *("mamba-ssm==2.3.2.post1", "causal-conv1d==1.7.0", "--no-build-isolation", "MAMBA_FORCE_BUILD=TRUE"),
        *("MAMBA_SKIP_CUDA_BUILD=TRUE", "CAUSAL_CONV1D_SKIP_CUDA_BUILD=TRUE", "MAMBA_KEEP_CUDA_BUILD=TRUE"),
    ):
        assert words in text
    # The two that import torch while they are built must not be in pip's list: it installs nothing in order.
    pip = next(line["pip"] for line in load("environment-peers.yml")["dependencies"] if isinstance(line, dict))
    assert not [line for line in pip if line.startswith(("mamba-ssm", "causal-conv1d"))]
    assert {"setuptools", "wheel", "packaging", "ninja", "einops"} <= set(pip)


def test_every_doctor_remedy_names_something_real() -> None:
    for remedy in checks.PEERS.values():
        for name in re.findall(r"environment[\w-]*\.yml", remedy):
            assert (ROOT / name).is_file()
        for extra in re.findall(r"mamba-lab\[(\w+)\]", remedy):
            assert extra in EXTRAS

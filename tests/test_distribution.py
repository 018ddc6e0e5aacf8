"""The package as pip sees it: under its own name and on no index, so that install hints work."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from runner.io import distribution
from runner.io.distribution import NAME, read_extras, read_project, read_requirements, to_install
from runner.validate.libraries import WANTED

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PACKAGES = {package for entries in WANTED.values() for *_, package in entries} | {"rouge-score"}


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """Pretend that the package is a wheel's, with its metadata or without."""
    monkeypatch.setattr(distribution, "PROJECT", tmp_path / "pyproject.toml")
    monkeypatch.syspath_prepend(str(tmp_path))

    def write() -> None:
        dependencies = list(PROJECT["dependencies"])
        for extra, packages in PROJECT["optional-dependencies"].items():
            dependencies += [f"{package}; extra == '{extra}'" for package in packages]
        needs = "".join(f"Requires-Dist: {dependency}\n" for dependency in dependencies)
        folder = tmp_path / f"{NAME.replace('-', '_')}-1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1\n{needs}"
        )

    return write


def typed(package: str) -> list[Requirement]:
    command, _, _ = to_install(package).partition("  (")
    pip, install, *words = shlex.split(command)
    assert (pip, install) == ("pip", "install")
    return [Requirement(word) for word in words]


def test_the_name_is_that_of_the_project_and_no_text_promises_the_index():
    assert PROJECT["name"] == NAME == read_project()["name"]
    files = [
        *(ROOT / "runner").rglob("*.py"),
        *(ROOT / "conf").rglob("*.yaml"),
        *ROOT.glob("*/README.md"),
    ]
    texts = {path: path.read_text(encoding="utf-8") for path in files}
    assert not [
        path for path, text in texts.items() if re.search(r"pip install.{0,4}(trl-)?runner\b", text)
    ]


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_install_hints_are_valid_for_pip_and_name_the_library(package):
    names = {requirement.name for requirement in typed(package)}
    assert package.partition("[")[0] in names or package in read_extras()


def test_an_extra_is_installed_whole_and_in_our_range():
    assert [str(requirement) for requirement in typed("sacrebleu")] == PROJECT[
        "optional-dependencies"
    ]["text"]
    assert [str(requirement) for requirement in typed("mlflow")] == PROJECT[
        "optional-dependencies"
    ]["mlflow"]
    assert [str(requirement) for requirement in typed("trl[vllm]")] == ["trl[vllm]"]


def test_a_wheel_says_the_same_as_its_checkout(wheel):
    wheel()
    assert read_project() == {}
    assert read_extras() == PROJECT["optional-dependencies"]
    assert to_install("math-verify") == "pip install 'math-verify>=0.9'  (the extra math)"
    assert [
        requirement for requirement in read_requirements() if "extra ==" not in requirement
    ] == PROJECT["dependencies"]


def test_a_copy_of_the_package_alone_knows_no_ranges(wheel, monkeypatch):
    monkeypatch.setattr(distribution, "NAME", "no-such-distribution")
    assert (read_requirements(), read_extras(), to_install("math-verify")) == (
        [],
        {},
        "pip install math-verify",
    )

"""This package as pip knows it: by pyproject.toml in a checkout, by the metadata of a wheel, or not at all."""

import re
import shlex
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

NAME = "trl-runner"  # ``runner`` is somebody else's on the package index
PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def read_project() -> dict[str, Any]:
    """The project's entries in pyproject.toml in a checkout; empty where the package is a wheel's."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8")).get("project", {}) if PROJECT.is_file() else {}
    return project if project.get("name") == NAME else {}  # some packages leave such a file beside ours


def read_requirements() -> list[str]:
    """The packages that we need; in a wheel those of its extras too, with a marker."""
    if project := read_project():
        return list(project["dependencies"])
    try:
        return metadata.requires(NAME) or []
    except metadata.PackageNotFoundError:
        return []


def read_extras() -> dict[str, list[str]]:
    """The packages that each extra adds."""
    if project := read_project():
        return dict(project["optional-dependencies"])
    extras: dict[str, list[str]] = {}
    for requirement in read_requirements():
        if found := re.fullmatch(r"(.*?) *; *extra == ['\"](.+)['\"]", requirement):
            extras.setdefault(found[2], []).append(found[1])
    return extras


def to_install(package: str) -> str:
    """The command that installs a package: in our range, and with what else an extra brings that has it or its name."""
    for extra, packages in read_extras().items():
        if package == extra or any(re.match(rf"{re.escape(package)}(?![\w\[-])", each) for each in packages):
            return f"pip install {shlex.join(packages)}  (the extra {extra})"
    return f"pip install {shlex.join([package])}"

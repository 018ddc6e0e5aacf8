"""This package as pip knows it: by pyproject.toml in a checkout, or by the metadata of a wheel."""

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

NAME = "trl-runner"  # ``runner`` is somebody else's on the package index
PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
EXTRA = re.compile(r"(.*?) *; *extra == ['\"](.+)['\"]")  # a requirement in a wheel, and its extra


def read_project() -> dict[str, Any]:
    """The project's entries in pyproject.toml; empty where the package is a wheel's."""
    if not PROJECT.is_file():
        return {}
    content = tomllib.loads(PROJECT.read_text(encoding="utf-8"))
    project: dict[str, Any] = content.get("project", {})
    # Beside a wheel some other package may have left such a file.
    return project if project.get("name") == NAME else {}


def read_requirements() -> list[str]:
    """The packages that we need; in a wheel those of its extras too, with a marker."""
    project = read_project()
    if project:
        return list(project["dependencies"])
    from importlib import metadata  # a twelfth of the time of a short command

    try:
        return metadata.requires(NAME) or []
    except metadata.PackageNotFoundError:
        return []


def read_extras() -> dict[str, list[str]]:
    """The packages that each extra adds."""
    project = read_project()
    if project:
        return dict(project["optional-dependencies"])
    extras: dict[str, list[str]] = {}
    for requirement in read_requirements():
        match = EXTRA.fullmatch(requirement)
        if match:
            extras.setdefault(match[2], []).append(match[1])
    return extras


def to_install(package: str) -> str:
    """The command that installs a package, in our range where an extra has it or its name."""
    requirement = re.compile(rf"{re.escape(package)}(?![\w\[-])")
    for extra, packages in read_extras().items():
        if package == extra or any(requirement.match(line) for line in packages):
            return f"pip install {shlex.join(packages)}  (the extra {extra})"
    return f"pip install {shlex.quote(package)}"

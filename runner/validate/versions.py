"""Libraries of which another version is installed than the runner was tried with."""

from collections.abc import Iterator

from runner.errors import Fault
from runner.io.distribution import read_requirements
from runner.run import installed_version


def find_other_versions() -> Iterator[Fault]:
    """A fault for each library that the runner needs in another version than the installed one."""
    from packaging.requirements import Requirement

    for text in read_requirements():
        if "extra ==" in text:
            continue
        requirement = Requirement(text)
        needed = str(requirement.specifier)
        version = installed_version(requirement.name)
        if version and is_within(version, needed):
            continue
        found = "not installed"
        if version:
            found = f"{requirement.name} {version}, which was not tried"
        yield Fault(
            where=requirement.name,
            found=found,
            expected=needed,
            fix=f"pip install '{text}', or tolerate.versions=true",
        )


def is_within(version: str | None, required: str) -> bool:
    """True for a version that is required, by its numbers; also where nobody can tell.

    A build of a machine's own, and what comes before a release, count as that release.

    >>> is_within("2.13.0+cpu", ">=2.9.0,<2.14"), is_within("2.9.0a0+nv25", ">=2.9.0,<2.14")
    (True, True)
    >>> is_within("2.9", ">=2.9.0,<2.14"), is_within("2.14", ">=2.9.0,<2.14")
    (True, False)
    """
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        return Version(version or "").base_version in SpecifierSet(required)
    except InvalidVersion:
        return True

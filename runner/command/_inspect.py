"""Commands that only print something: the help, the versions, or the configuration."""

import platform

from runner.command import CommandLine
from runner.command._help import help_text

LIBRARIES = ("trl", "transformers", "torch", "peft", "datasets", "accelerate")


def inspect(line: CommandLine) -> int:
    """Print what the flags of a command line ask for, and return the exit code.

    The configuration is printed once its keys have been checked, of an experiment with stages that
    of each.
    """
    if "--help" in line.inspect:
        print(help_text(line.verb, line.folders))
        return 0
    if "--version" in line.inspect:
        print(version_text())
        return 0
    try:
        from runner.command._shown_config import show_config

        show_config(line)
    except SystemExit as ended:  # Hydra leaves so after its help
        return int(ended.code or 0)
    return 0


def version_text() -> str:
    """The version of the runner and of the libraries, none of which is imported."""
    from runner.io.distribution import NAME, read_project
    from runner.run.manifest import installed_version

    version = read_project().get("version") or installed_version(NAME)
    parts = []
    for library in LIBRARIES:
        library_version = installed_version(library) or "missing"
        parts.append(f"{library} {library_version}")
    parts.append(f"Python {platform.python_version()}")
    return f"{NAME} {version} ({', '.join(parts)})"

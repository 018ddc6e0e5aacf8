"""Commands that only print something: the help, the versions, or the configuration."""

import platform

from runner.command import CommandLine
from runner.command._help import help_text
from runner.config.batch import MADE
from runner.config.composition import as_yaml, call_hydra
from runner.config.override import latest, parse
from runner.config.resolution import Composed
from runner.io.distribution import NAME, read_project
from runner.launch.compose import stages
from runner.run import installed_version
from runner.run.key import folder_of
from runner.schema.text import select

LIBRARIES = ("trl", "transformers", "torch", "peft", "datasets", "accelerate")


def inspect(line: CommandLine) -> int:
    """Print what the flags of a command line ask for, and return the exit code.

    Hydra prints the configuration, or that of each stage, once the keys have been checked.
    """
    if "--help" in line.inspect:
        print(help_text(line.verb, line.folders))
        return 0
    if "--version" in line.inspect:
        print(version_text())
        return 0
    parse(line.overrides)  # Hydra would raise errors of its own
    shows_config = any(flag.startswith("--cfg=") for flag in line.inspect)
    try:
        if not shows_config or line.multirun:
            call_hydra(lambda cfg: None, line.inspect, line.overrides, line.folders)
            return 0
        for composed in stages.compose_runs(line.overrides, line.folders):
            _print_config(composed, line)
    except SystemExit as ended:  # Hydra leaves so after its help
        return int(ended.code or 0)
    return 0


def _print_config(composed: Composed, line: CommandLine) -> None:
    """Print a configuration, or what Hydra's flags ask about it.

    Hydra composes it from words again. What the runner has settled since, and Hydra cannot know
    of, is added to these.
    """
    if composed.stage:
        folder = folder_of(composed.cfg, composed.overrides)
        print(f"# stage {composed.stage}: {folder}", flush=True)
    words = [f"name={composed.cfg['name']!r}", *(composed.words or line.overrides)]
    if composed.note:  # Hydra would take the values of the model's option
        words.append("model=hub")
    if composed.rate:
        words.append(f"learning_rate={composed.cfg['learning_rate']!r}")
    if select(composed.cfg, "model.merge"):
        words.append("model.merge=true")
    if composed.cfg.get("batch"):
        for key in MADE:
            value = select(composed.cfg, key)
            words.append(f"{key}={value}")
    if line.inspect == ["--cfg=job"]:  # without composing it once more
        print(as_yaml(latest(words), line.folders), end="")
    else:
        call_hydra(lambda cfg: None, line.inspect, latest(words), line.folders)


def version_text() -> str:
    """The version of the runner and of the libraries, none of which is imported."""
    version = read_project().get("version") or installed_version(NAME)
    parts = []
    for library in LIBRARIES:
        library_version = installed_version(library) or "missing"
        parts.append(f"{library} {library_version}")
    parts.append(f"Python {platform.python_version()}")
    return f"{NAME} {version} ({', '.join(parts)})"

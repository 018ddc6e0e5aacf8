"""The configuration of a command line, as ``--cfg job`` and Hydra's other flags print it."""

from runner.command import CommandLine
from runner.config.batch import MADE
from runner.config.composition import as_yaml, call_hydra
from runner.config.override import latest, parse
from runner.config.resolution import Composed
from runner.launch.compose import stages
from runner.run.key import folder_of
from runner.schema.text import select


def show_config(line: CommandLine) -> None:
    """Print what the flags ask for; Hydra prints it, once the keys have been checked."""
    parse(line.overrides)  # Hydra would raise errors of its own
    shows_config = any(flag.startswith("--cfg=") for flag in line.inspect)
    if not shows_config or line.multirun:
        call_hydra(lambda cfg: None, line.inspect, line.overrides, line.folders)
        return
    for composed in stages.compose_runs(line.overrides, line.folders):
        _print_config(composed, line)


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

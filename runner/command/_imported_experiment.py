"""The experiment that ``import`` makes of a file: its place, and what keeps it from running."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from runner.command._editor_schemas import FOLDER, schema_line
from runner.config.composition import compose
from runner.errors import ConfigError, Fault
from runner.io.files import write_text
from runner.launch.compose import stages

HERE = Path("conf/experiment")
ALREADY_THERE = "it already exists"


def write_experiment(text: str, target: Path) -> str:
    """Write the text of an experiment, with the line of its schema where editors have one.

    Returns the text with that line. ``check_free`` says before whether a file may be replaced.
    """
    if (target.parent.parent / FOLDER / "experiment.json").is_file():
        text = text.replace("\n# cost:", f"\n{schema_line(text, 'experiment')}\n# cost:", 1)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_text(target, text)
    return text


def check_free(target: Path, *, force: bool) -> None:
    """Raise ConfigError where the file is there, unless ``force`` replaces it."""
    if target.exists() and not force:
        raise ConfigError(
            Fault(
                where=str(target),
                found=ALREADY_THERE,
                expected="a free name",
                fix="name=<another>, or force=true",
            )
        )


def faults_of(name: str, text: str, words: Sequence[str]) -> list[Fault]:
    """The faults that keep an experiment from running; ``words`` have to be typed with it."""
    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        write_text(folder / "experiment" / f"{name}.yaml", text)
        try:
            composed = compose([f"experiment={name}", *words], [folder])
            return stages.faults_of(composed, [folder])
        except ConfigError as error:
            return error.faults

"""The provenance of the values of a configuration: of one that is typed, or of that of a run.

For a run its command is composed again, as it is today. Where that makes another value than the run
has, the value comes from the run's own config.yaml, and something has changed since.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from runner.command import CommandLine
from runner.config.adapter_rate import FACTOR_KEY, KEY
from runner.config.composition import differences
from runner.config.provenance import Provenance, Setting, read_provenance, read_settings
from runner.config.resolution import Composed
from runner.errors import RunnerError
from runner.launch.compose import stages
from runner.report.facts import split_command, words_of
from runner.run.adjustments import in_words, read_adjustments
from runner.run.find import is_run
from runner.run.key import key_of
from runner.run.record import RunRecord, one_line, read_run
from runner.schema.literal import to_text

# Settings of the model's option that a value computed for the model has replaced.
OF_MODEL_OPTION = re.compile(r"(?!model\.).*\bmodel/[^/]+\.yaml:")
MAX_REPETITIONS = 16  # of a run that reproduces one that reproduces one


def provenance_of(composed: Composed, line: CommandLine) -> Provenance:
    """The settings of all keys, without those that the runner has replaced for the model."""
    words = composed.overrides
    typed = None
    if composed.stage:
        words = composed.words
        typed = composed.overrides
    provenance = read_provenance(composed.cfg, words, line.folders, typed, composed.stage)
    if composed.rate:
        place = provenance.of(FACTOR_KEY)[0].place
        product = Setting(KEY, composed.rate.product, place, FACTOR_KEY)
        provenance = replace(provenance, settings=[*provenance.settings, product])
    if not composed.note:
        return provenance
    settings = []
    for setting in provenance.settings:
        if not OF_MODEL_OPTION.match(f"{setting.key} {setting.place}"):
            settings.append(setting)
    return replace(provenance, settings=settings)


# --- That of a run --------------------------------------------------------------------------------
def provenance_of_run(run: RunRecord) -> tuple[Provenance, list[str]]:
    """The settings of all keys of a run's config, with lines on them.

    They are why only its file explains them, where its command cannot be composed again, and what
    the run has changed of its config.
    """
    adjusted = list(adjustment_lines(run))
    frozen = read_settings(run.folder / "config.yaml", "")
    try:
        line = _read_command(run)
        if line is None:
            reason = "no command is recorded in its manifest.json"
            return Provenance(run.cfg, frozen), [f"note      {reason}", *adjusted]
        composed = _find_composed(run, line)
        provenance = provenance_of(composed, line)
    except RunnerError as error:
        reason = f"its command can no longer be composed: {one_line(str(error))}"
        return Provenance(run.cfg, frozen), [f"note      {reason}", *adjusted]
    settings = list(provenance.settings)
    # The keys whose value in the run is not what its command makes today.
    places = {setting.key: setting.place for setting in frozen}
    for key, value, _ in differences(run.cfg, composed.cfg):
        place = places.get(key, f"{run}/config.yaml")
        settings.append(Setting(key, to_text(value), place, "what gave it has changed since"))
    return Provenance(run.cfg, settings), adjusted


def _read_command(run: RunRecord) -> CommandLine | None:
    """The words that make a run, of a run that reproduces another those of the other."""
    for _ in range(MAX_REPETITIONS):
        words = words_of(run)
        if not words or words[0] != "reproduce":
            break
        folder = run.folder.parent.parent.parent / words[-1]
        if not is_run(folder):
            return None
        run = read_run(folder)
    if words is None:
        return None
    overrides, folders = split_command(words)
    # It imports the importers, which only a command with a file of another tool needs.
    from runner.command._foreign_files import translate_files

    translate_files(overrides)
    return CommandLine("why", overrides, folders=folders)


def _find_composed(run: RunRecord, line: CommandLine) -> Composed:
    """The configuration that a command makes for a run: that with its key, else with its name."""
    runs = stages.compose_unchecked(line.overrides, line.folders)
    key = key_of(run.cfg)
    for composed in runs:
        if key_of(composed.cfg) == key:
            return composed
    for composed in runs:
        if composed.cfg.get("name") == run.cfg.get("name"):
            return composed
    return runs[-1]


def adjustment_lines(run: RunRecord) -> Iterator[str]:
    """A line for each change that a run has made to its config while it trained."""
    for adjustment in read_adjustments(run.folder):
        yield f"adjusted  {in_words(adjustment)}"

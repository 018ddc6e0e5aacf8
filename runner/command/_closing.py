"""The last lines of a training: its scores, some answers, and the command to type next."""

import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from runner.config.menu import read_options
from runner.config.override import dotted_key
from runner.dataset.form import fits
from runner.io.terminal import coloured, line_of
from runner.io.visible import to_visible
from runner.report.facts import split_command, words_of
from runner.report.number import format_duration, plural
from runner.report.ranking import choose_objective, score_rows
from runner.report.samples import completions_by_step
from runner.report.table import score_table
from runner.run.history import SAMPLE_FILES
from runner.run.record import RunRecord
from runner.training.follow_up import INHERITED, inherited_words, to_command

SHOWN_SAMPLES = 3  # held-out prompts whose answers before and after are shown
# Keys of the model that the next run does not take over, because its model is the trained one.
MODEL_KEYS = r"model\.(path|revision|merge|tokenizer\.(path|revision))"


def describe_end(run: RunRecord, seconds: float) -> str:
    """The lines that a finished run prints."""
    title = coloured("finished", "green", sys.stdout)
    steps = plural(run.status["step"], "step")
    lines = [f"{title}  {steps} in {format_duration(seconds)}"]
    lines += _score_lines(run)
    if run.cause:
        lines.append(f"note      {run.cause}")
    lines += _sample_lines(run)
    for name in SAMPLE_FILES:
        if (run.folder / name).exists():
            lines.append(f"samples   {run}/{name}")
            break
    lines.append(f"model     {run}/model")
    lines.append(f"curves    {run}/plots")
    lines.append(f"next      {to_visible(next_command(run))}")
    return "\n".join(lines)


def _score_lines(run: RunRecord) -> Iterator[str]:
    """The table of the scores, with the change of the objective in colour."""
    objective = choose_objective([run])
    titles, *lines = score_table(run) or [""]
    if titles:
        yield titles
    for line, row in zip(lines, score_rows(run), strict=False):
        is_objective = objective is not None and row.name == objective.name
        if is_objective and row.change.is_visible:
            line = coloured(line, "red" if row.change.is_worse else "green", sys.stdout)
        yield line


def _sample_lines(run: RunRecord) -> Iterator[str]:
    """The answers to some held-out prompts before and after the training."""
    width = shutil.get_terminal_size((80, 24)).columns - 10
    for prompt in completions_by_step(run)[:SHOWN_SAMPLES]:
        before = prompt.cells[0]
        after = prompt.cells[-1]
        if before.label == "step 0" and after.label != "step 0":
            yield f"sample    {line_of(prompt.text, width, tail=True)}"
            yield f"  before  {line_of(before.sample['completion'], width)}"
            yield f"  after   {line_of(after.sample['completion'], width)}"


def next_command(run: RunRecord) -> str:
    """The command that trains on from this model, or else the one that has it answer.

    Nobody is sent on from a model that is worse than the one it began with, or that has learnt
    nothing.
    """
    overrides, folders = split_command(words_of(run) or [])
    typed = {dotted_key(word): word for word in overrides}
    follower = _next_trainer(run)
    if not _can_train_on(run, follower, typed):
        rows_words = _rows_words(run, typed)
        return shlex.join(["python", "-m", "runner", "predict", str(run), *rows_words])
    left_out = MODEL_KEYS
    if follower == "ppo":
        # Its policy is the model that this run began with.
        left_out = ""
    groups: tuple[str, ...] = INHERITED
    if _has_environment(run):
        # Its answers are learnt, and next it is played.
        groups = (*INHERITED, "environment")
        left_out += r"|dataset\.form"
    words = inherited_words(run.manifest.get("choices") or {}, typed, left_out, groups)
    start = f"model.path={run}/model"
    if follower == "ppo":
        words += ["reward=model", f"reward.{start}"]
    else:
        words.append(start)
    return to_command([f"trainer={follower}", *words], folders)


def _next_trainer(run: RunRecord) -> str:
    """The trainer that usually comes after that of a run."""
    trainer = run.experiment.trainer
    form = _form_of_rows(run)
    if trainer.head == "score":
        return "ppo"
    if trainer.form == "demonstration" and form and fits(form, "preference"):
        return "dpo"
    return "grpo"


def _form_of_rows(run: RunRecord) -> str:
    """The form of the rows as far as it is known without reading them; else empty."""
    form = run.experiment.dataset.form or ""
    if not form and run.experiment.trainer.form == "preference":
        form = "preference"
    return form


def _can_train_on(run: RunRecord, follower: str, typed: Mapping[str, str]) -> bool:
    """True where the next trainer has all that it needs of this run, and there is a reason to."""
    choices = run.manifest.get("choices") or {}
    form = _form_of_rows(run)
    has_rewards = _brings_rewards(choices.get("dataset"))
    has_rewards = has_rewards or ("dataset" in typed and follower != "grpo")
    # What an experiment set of its environment would have to be typed again.
    has_rewards = has_rewards or ("environment" in typed and "experiment" not in typed)
    has_prompts = run.experiment.trainer.form != "prompt" and form and fits(form, "prompt")
    is_new = str(choices.get("model", "new")).startswith("new")
    if is_new or _has_own_tuner(run) or run.cause:
        return False
    return bool(has_rewards and has_prompts)


def _has_environment(run: RunRecord) -> bool:
    choices = run.manifest.get("choices") or {}
    return bool(choices.get("environment", "none") != "none")


def _has_own_tuner(run: RunRecord) -> bool:
    """True where a tuner of the user's has saved the model in a form of its own.

    Neither transformers nor peft could load it.
    """
    model: Path = run.run.model
    is_model = (model / "config.json").exists()
    is_adapter = (model / "adapter_config.json").exists()
    return not is_model and not is_adapter


def _rows_words(run: RunRecord, typed: Mapping[str, str]) -> list[str]:
    """The words with which ``predict`` finds rows, and may load the model."""
    words = []
    data = run.manifest.get("data") or {}
    if not data.get("eval"):
        words.append("set=train")
    # The code of a tuner reads what it wrote, and that of an environment makes the rows.
    if "allow" in typed and (_has_own_tuner(run) or _has_environment(run)):
        words.append(typed["allow"])
    return words


def _brings_rewards(dataset: str | None) -> bool:
    """True for an option of the dataset group that chooses rewards, or whose base does."""
    options = read_options("dataset")
    option = options.get(dataset or "", {})
    for entry in option.get("defaults", []):
        if isinstance(entry, dict):
            if "override /reward" in entry:
                return True
        elif _brings_rewards(entry):
            return True
    return False

"""The forecast of learning: what the first completions of a run have earned.

In a training they are those that it samples anyway, in its first process. What is a signal, and
when a prompt counts as solved, is said in ``generate.learning``.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from tqdm import tqdm
from transformers import Trainer

from runner.config.experiment import Experiment
from runner.generate.learning import count_groups
from runner.io.turns import Row
from runner.report.facts import words_of
from runner.run import Run, add_notes
from runner.run.record import read_run
from runner.training.follow_up import propose_answers
from runner.training.step_samples import StepSamples

# A forecast takes so many completions and prompts at least, in one rollout or in several.
MIN_COMPLETIONS = 64
MIN_PROMPTS = 8
LOOKED_AT = 8  # rows, for an answer that a model could be shown


@dataclass
class FirstRewards:
    """The rewards of the first completions of a run, and what its rows offer beside rewards."""

    groups: list[list[float]] = field(default_factory=list)  # of the completions of each prompt
    has_answers: bool = False  # some row holds an answer that SFT could show

    def describe(self, command: Sequence[str], choices: Mapping[str, str]) -> str:
        """The forecast in a line; where nothing can be learnt, with the SFT that would help.

        ``command`` are the arguments that make the run, ``choices`` its options by group.
        """
        learning = count_groups(self.groups)
        if learning is None:
            return "unknown: no completion earned a reward"
        text = str(learning)
        if self.has_answers and not learning.is_possible:
            answers = propose_answers(command, choices)
            text += f": {answers}" if answers else ""
        return text


def holds_answers(experiment: Experiment, rows: Iterable[Row]) -> bool:
    """True where one of the first rows holds an answer beside its prompt."""
    column = experiment.trainer.reference_column or "reference"
    return any(row.get(column) for row in islice(rows, LOOKED_AT))


@dataclass(eq=False)
class FirstRollouts:
    """Collects the rewards of the first rollouts of a run, and notes the forecast once."""

    run: Run
    rewards: FirstRewards = field(default_factory=FirstRewards)
    counted: object = None  # the rollout that was counted last
    is_over: bool = False

    def observe(self, trainer: Trainer) -> None:
        """Count the rollout of a micro-batch that was trained on just now."""
        if self.is_over:
            return
        size = getattr(trainer.args, "num_generations", None)
        groups = self.rewards.groups
        is_resumed = not groups and trainer.state.global_step > 0
        if not size or is_resumed or not trainer.is_world_process_zero():
            self.is_over = True
            return
        if hasattr(trainer, "sampled"):  # by PPO
            rollout: object = trainer.sampled
            earned = [row["reward"] for row in trainer.sampled]
        else:
            samples: StepSamples = trainer.hooks.samples
            earned = samples.earned()
            rollout = samples.rollout
        # One rollout is trained on in several micro-batches, and perhaps several times.
        if rollout is self.counted or not earned:
            return
        self.counted = rollout
        if len(earned) % size:  # its groups are shared with other processes
            self.is_over = True
            return
        for start in range(0, len(earned), size):
            groups.append(earned[start : start + size])
        if len(groups) >= MIN_PROMPTS and size * len(groups) >= MIN_COMPLETIONS:
            self.is_over = True
            self._note(trainer)

    def _note(self, trainer: Trainer) -> None:
        """Write the forecast into the log; as a note of the run where nothing can be learnt."""
        learning = count_groups(self.rewards.groups)
        if learning is not None and learning.is_possible:
            tqdm.write(f"learning  {learning}")
            return
        record = read_run(self.run.folder)
        words = words_of(record)
        if words is not None:
            self.rewards.has_answers = holds_answers(self.run.experiment, trainer.train_dataset)
        choices = record.manifest.get("choices") or {}
        add_notes(self.run, [self.rewards.describe(words or [], choices)])

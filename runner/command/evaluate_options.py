"""The help of the verb ``evaluate``, and its options."""

from dataclasses import dataclass

from runner.command import VERBS
from runner.command._ask_options import AskOptions
from runner.metric.harness import TaskSettings
from runner.schema.ranges import Natural

HELP = (
    "python -m runner evaluate RUN [dataset=...] [metric=...] [reward=...] [against=RUN2] "
    "[key=value ...]",
    VERBS["evaluate"] + "; the run's own or any others: loss and perplexity of the known answers, "
    "and what metrics and rewards say of completions, each with its standard error where it is a "
    "mean over prompts. A reward model is asked how often it prefers the right answer. Written "
    "to <run>/evaluations/<rows>-<key>.json, with every completion in the .jsonl beside it; "
    "scores.json stays what the training itself measured.",
    {
        "dataset=toy_sort": "other rows, with the metrics and rewards that fit them; "
        "file=rows.jsonl for a file",
        'dataset.split.eval=\'{easy: "eval[:50%]", hard: "eval[50%:]"}\'': "several sets, each "
        "with figures of its own",
        "set=eval": "train, eval (every held-out set), or the name of one",
        "limit=100": "the first rows of each set only",
        "metric=overlap": "any option of the metric group, or metric.<name>._target_=...; "
        "metric=none",
        "reward=sorted_digits": "any option of the reward group, a rule or a model: reward=model "
        "reward.model.path=<folder>",
        "against=RUN2": "the same prompts answered by both, compared by the reward: wins, ties "
        "and losses, the win rate and the mean difference, with 95 % intervals over prompts: of "
        "the win rate by its score (Wilson's, with ties), of the difference by a paired "
        "bootstrap (BCa). Both models draw by the same random numbers, so the win rate is that "
        "of coupled draws, which tie more often than draws apart; from fewer than 100 prompts "
        "intervals can be too narrow. against=start is the model that the training began with",
        "checkpoint=last": "model, best, last, a step, or start; the default as for predict",
        "batch_size=32 max_new_tokens=64 temperature=1 top_k=0 top_p=1 n=1 seed=0": "as for "
        "predict; the temperature is 1 unless it is typed, as in the evaluations of a training",
        "lm_eval=[arc_easy,hellaswag]": "tasks of EleutherAI's lm-evaluation-harness (pip install "
        "lm-eval) in place of the rows, with the standard errors that it states; limit= and "
        "batch_size= hold for them, num_fewshot=5 and apply_chat_template=true as there. "
        "include_path=tasks is a folder with tasks of your own, which needs "
        "trust_remote_code=true as they can run code. against=RUN2 adds the other model's",
        "engine=vllm": "vLLM samples the completions, as for predict",
        "to=file.json": "another place",
        "output_root=outputs": "where names and keys of runs are looked up",
    },
    "Without a RUN, any model: evaluate model=hub model.path=org/name dataset=..., with "
    "head=score for a reward model.",
)


@dataclass(frozen=True)
class Options(AskOptions, TaskSettings):
    """The options of ``evaluate``, with those of the tasks of ``lm_eval``."""

    against: str | None = None
    lm_eval: str | None = None
    num_fewshot: Natural | None = None

    @property
    def tasks(self) -> list[str]:
        """The tasks of lm-evaluation-harness that are asked for."""
        names = (self.lm_eval or "").strip("[]").split(",")
        return [name.strip() for name in names if name.strip()]

"""The rewards of the start model of a run on its first prompts, of which nothing is trained."""

from runner.config.experiment import Experiment
from runner.generate.completion import TextGenerator, context_length
from runner.generate.held_out_rows import read_sets
from runner.generate.judge import judge_completions
from runner.generate.sampler import Sampling
from runner.run.weights import START, Weights
from runner.schema.upstream import COMPLETION_LENGTHS, config_fields, setting
from runner.training.components.reward_score import build_score
from runner.training.components.tools import agent_of, build_functions
from runner.training.components.trained_model import load_trained
from runner.training.first_rollouts import FirstRewards, holds_answers

COMPLETIONS = 128  # that are sampled
MIN_PROMPTS = 8  # also where a group is larger
SIDE_BY_SIDE = 64  # completions that are sampled at once
MAX_NEW_TOKENS = 64  # where the trainer has no limit


def sample_rewards(experiment: Experiment) -> FirstRewards:
    """The rewards of a group of completions for each of the first prompts, sampled by ours."""
    trainer = experiment.trainer
    args = trainer.args
    size = int(setting(args, "num_generations", 1))
    model, tokenizer = load_trained(experiment, Weights(START), trainer.head)
    agent = agent_of(trainer, build_functions(trainer, experiment.environment))
    count = max(MIN_PROMPTS, COMPLETIONS // size)
    rows = read_sets(experiment, "prompt", name="train", limit=count)["train"]
    length = MAX_NEW_TOKENS
    for name in COMPLETION_LENGTHS:
        if name in config_fields(args):
            length = setting(args, name) or length
    sampling = Sampling(
        length,
        temperature=setting(args, "temperature", 1.0),
        top_p=setting(args, "top_p", 1.0),
        top_k=setting(args, "top_k", 0),
        rows=SIDE_BY_SIDE,
        max_length=context_length(model),
    )
    generator = TextGenerator(model, tokenizer, sampling, experiment.seed, size, agent=agent)
    score = build_score(experiment, tokenizer, agent)
    figures = judge_completions(generator, rows, [], score)
    groups: list[list[float]] = [[] for _ in rows]
    for completion in figures.completions:
        groups[completion["row"]].append(completion["reward"])
    return FirstRewards(groups, holds_answers(experiment, rows))

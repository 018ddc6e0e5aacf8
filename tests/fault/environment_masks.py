"""Episodes of an environment, token by token: ``python environment_masks.py environment=... ...``

The tokens that count as the model's own must be those that were sampled, turn by turn, and the
others those that the template writes for the turns of the environment.
"""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from runner.config.composition import compose
from runner.config.experiment import Experiment
from runner.generate.agent import build_agent
from runner.generate.environment.contract import close_sources, open_source
from runner.generate.sampler import Sampling, sample
from runner.model.encoding import stop_ids
from runner.training.components.tools import build_environment

EPISODES = 12
TINY = Path(__file__).resolve().parents[2] / "runner" / "model" / "tiny"


def main(words):
    words = [word for word in words if not word.startswith("allow=")]
    part = Experiment.read(compose(["trainer=ppo", *words]).cfg).environment
    agent = build_agent(environments=build_environment(part))
    rows = open_source(part).rows(EPISODES, 0, False)
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    model = AutoModelForCausalLM.from_pretrained(TINY).eval()
    noise_BR = torch.rand(len(rows), 48, generator=torch.Generator().manual_seed(0))
    draws = []

    def sampler(prompts, how, noise):
        drawn = sample(model, prompts, how, noise)
        draws.extend(zip(map(list, prompts), drawn.tokens, strict=True))
        return drawn

    how = Sampling(max_new_tokens=48, stop_ids=tuple(stop_ids(model)))
    episodes = agent.play(sampler, tokenizer, rows, how, noise_BR)
    longest = 0
    for episode in episodes:
        ids = episode.token_ids
        sampled = [False] * len(ids)
        for prompt, tokens in draws:
            begin = len(prompt) - len(episode.prompt_ids)
            end = min(begin + len(tokens), len(ids))
            if prompt != [*episode.prompt_ids, *ids[: max(begin, 0)]]:
                continue
            if ids[begin:end] == tokens[: end - begin].tolist():
                sampled[begin:end] = [True] * (end - begin)
        assert sampled == episode.own, (sampled, episode.own)
        assert len(episode.logprobs) == sum(episode.own)
        others = [token for token, is_own in zip(ids, episode.own, strict=True) if not is_own]
        written = tokenizer.decode(others)
        turns = [turn for turn in episode.turns if turn["role"] != "assistant"]
        for turn in turns:
            place = written.find(str(turn["content"]))
            assert place >= 0, (turn, written)
            written = written[place + len(str(turn["content"])) :]
        longest = max(longest, len(turns))
    print(f"{len(episodes)} episodes, {longest} turns of the environment at most")


try:
    main(sys.argv[1:])
finally:
    close_sources()

"""Ten steps of PPO that samples by vLLM, and then vLLM's completions beside those of the policy.

    python tests/fault/vllm_real_engine.py colocate|server whole|lora [URL]

Prints the findings as JSON. ``vllm_real.py`` starts it in an environment with vLLM.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS.parent), str(TESTS)]

import torch
from datasets import Dataset
from tiny_ppo import letter_trainer, logs_of, lora
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from runner.generate.sampler import Responses, Sampling, sample, seeded_generator, uniform
from runner.ppo.sampling import sampling_of

MODEL = TESTS.parent / "runner" / "model" / "tiny"
LENGTH = 24
TEMPERATURE = 0.7
RATIO = "sampling/importance_sampling_ratio"


def noise_of(numbers: Sequence[int]) -> Tensor:
    """The noise of a completion for each number."""
    return torch.stack([uniform(LENGTH, generator=seeded_generator(n)) for n in numbers])


def to_lists(responses: Responses) -> list[list[int]]:
    return [tokens.tolist() for tokens in responses.tokens]


@torch.no_grad()
def farthest(
    policy: Any, prompts: Sequence[list[int]], responses: Responses, temperature: float
) -> float:
    """The largest difference of a log-probability from that of a plain forward pass."""
    distance = 0.0
    for prompt, tokens, logprobs in zip(prompts, responses.tokens, responses.logprobs, strict=True):
        logits = policy(torch.tensor([[*prompt, *tokens.tolist()]])).logits[0]
        of_all = torch.log_softmax(logits[len(prompt) - 1 : -1] / temperature, -1)
        ours = of_all.gather(1, tokens[:, None])[:, 0]
        distance = max(distance, (ours - logprobs).abs().max().item())
    return distance


def measure(mode: str, tuner: str, url: str, folder: str) -> dict[str, Any]:
    """Train, and compare the completions of vLLM with those of the policy."""
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    texts = [f"Sort these digits: {n % 10} {n % 7} {n % 3} {n * n % 10}" for n in range(16)]
    options = {}
    if tuner == "lora":
        options["peft_config"] = lora()
    if mode == "server":
        options["vllm_server_base_url"] = url
    trainer = letter_trainer(
        folder,
        model=model,
        processing_class=tokenizer,
        rows=Dataset.from_dict({"prompt": texts, "wanted": [*"0123456789abcdef"]}),
        rollout_engine="vllm",
        vllm_mode=mode,
        max_steps=10,
        learning_rate=3e-4,
        response_length=12,
        temperature=TEMPERATURE,
        **options,
    )
    prompts = [tokenizer(text)["input_ids"] for text in texts]
    policy = trainer.actor_critic.policy.eval()
    greedy = Sampling(LENGTH, sampling_of(trainer).stop_ids, temperature=0.0)
    numbers = range(len(prompts))
    before = to_lists(sample(policy, prompts, greedy, noise_of(numbers)))
    trainer.train()
    policy.eval()
    ask = trainer.engine_sampler()
    ours = to_lists(sample(policy, prompts, greedy, noise_of(numbers)))
    theirs = to_lists(ask(prompts, greedy, noise_of(numbers)))
    found: dict[str, Any] = {
        "tied": bool(model.config.tie_word_embeddings),
        "greedy_equal": sum(our == their for our, their in zip(ours, theirs, strict=True)),
        "greedy_changed": sum(old != new for old, new in zip(before, ours, strict=True)),
        "prompts": len(prompts),
    }

    # Completions at a temperature, and their log-probabilities.
    how = Sampling(LENGTH, greedy.stop_ids, temperature=TEMPERATURE)
    responses = ask(prompts, how, noise_of(numbers))
    answers = to_lists(responses)
    found["logprobs"] = farthest(policy, prompts, responses, TEMPERATURE)
    found["tokens"] = sum(map(len, answers))

    # The same prompts in another order, and each alone.
    backwards = to_lists(ask(prompts[::-1], how, noise_of(numbers[::-1])))
    alone = [to_lists(ask([prompts[n]], how, noise_of([n])))[0] for n in range(4)]
    found["order_equal"] = sum(a == b for a, b in zip(answers, backwards[::-1], strict=True))
    found["alone_equal"] = sum(a == b for a, b in zip(answers[:4], alone, strict=True))

    # One prompt again and again.
    equal_prompts = [prompts[0]] * 16
    several = to_lists(ask(equal_prompts, how, noise_of(range(16))))
    found["distinct"] = len({tuple(answer) for answer in several})
    again = to_lists(ask(equal_prompts, how, noise_of(range(16))))
    found["repeated"] = sum(a == b for a, b in zip(several, again, strict=True))
    same_noise = to_lists(ask(equal_prompts, how, noise_of([3] * 16)))
    found["of_one_seed"] = len({tuple(answer) for answer in same_noise})

    # Tokens that end a completion.
    found |= _measure_stops(ask, prompts, answers)

    logs = logs_of(trainer)
    found["ratio_min"] = min(line[f"{RATIO}/min"] for line in logs)
    found["ratio_max"] = max(line[f"{RATIO}/max"] for line in logs)
    found["files"] = sorted(path.name for path in Path(folder).iterdir())
    return found


def _measure_stops(
    ask: Any, prompts: Sequence[list[int]], answers: Sequence[list[int]]
) -> dict[str, int]:
    """How many completions end with one of two common tokens, at the length, or wrongly."""
    stops = (answers[0][2], answers[1][3])
    how = Sampling(LENGTH, stops, temperature=TEMPERATURE)
    counts = {"stopped": 0, "cut_off": 0, "wrong_ends": 0}
    for answer in to_lists(ask(prompts, how, noise_of(range(len(prompts))))):
        if set(answer[:-1]) & {*stops}:
            counts["wrong_ends"] += 1
        elif answer[-1] in stops:
            counts["stopped"] += 1
        elif len(answer) == LENGTH:
            counts["cut_off"] += 1
        else:
            counts["wrong_ends"] += 1
    return counts


def main(mode: str, tuner: str, url: str = "") -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = measure(mode, tuner, url, folder)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

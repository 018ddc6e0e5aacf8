"""Sampling: every engine draws from softmax(logits / temperature), and says what it drew with which probability."""

import pytest
import torch
from tiny_ppo import END, WORDS, letter_model, lora
from transformers import AutoConfig, GenerationConfig

from runner.trainer.rollout import Samples, Sampling, choose_engine, cut, draw, sample

PROMPTS = [[0, 1, 2], [3], [4, 5, 6, 7, 8, 9], [0, 0]]


def noise(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(rows, length, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def recomputed(model, prompt, tokens, temperature):
    """Log-probabilities of one unpadded row, in one plain forward pass."""
    logits = model(torch.tensor([[*prompt, *tokens.tolist()]])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits / temperature, -1).gather(1, tokens[:, None])[:, 0]


# --- One token ----------------------------------------------------------------------------------


def test_tokens_are_drawn_as_often_as_their_probability_says():
    logits = torch.tensor([2.0, -1.0, 0.5, -torch.inf, 1.0])
    count = 200_000
    # Evenly spread noise leaves no chance: each token is met in exact proportion.
    even = (torch.arange(count) + 0.5) / count
    tokens, logprobs = draw(logits.expand(count, -1), even, temperature=0.7)
    expected = torch.softmax(logits / 0.7, -1)
    assert torch.allclose(tokens.bincount(minlength=5) / count, expected, atol=2 / count)
    assert torch.allclose(logprobs, expected.log()[tokens], atol=1e-6)


def test_random_noise_passes_a_chi_square_test():
    logits = torch.randn(12, generator=torch.Generator().manual_seed(1))
    count = 100_000
    tokens, _ = draw(logits.expand(count, -1), noise(count, 1)[:, 0], temperature=1.3)
    expected = torch.softmax(logits / 1.3, -1) * count
    # 11 degrees of freedom; 31.3 is exceeded once in a thousand times.
    assert ((tokens.bincount(minlength=12) - expected).square() / expected).sum() < 31.3


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-24])
def test_the_ends_of_the_noise_draw_no_impossible_token(uniform):
    logits = torch.full((1, 50_000), -torch.inf)
    logits[0, 7:40_000] = torch.randn(39_993, generator=torch.Generator().manual_seed(0))
    token, logprob = draw(logits, torch.tensor([uniform]), temperature=1.0)
    assert logprob.isfinite().all() and 7 <= token.item() < 40_000


# --- Whole completions --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["llama", "gpt2", "gpt_neox", "opt", "gemma2", "mistral"])
def test_the_loop_gives_the_log_probabilities_of_unpadded_rows(kind):
    # A window shorter than a row, where the architecture has one.
    model = letter_model(kind, **{"sliding_window": 4} if kind in ("gemma2", "mistral") else {})
    samples = sample("loop", model, PROMPTS, Sampling(8, (END,), 0.7), noise(4, 8))
    for prompt, tokens, logprobs in zip(PROMPTS, samples.tokens, samples.logprobs, strict=True):
        assert torch.allclose(logprobs, recomputed(model, prompt, tokens, 0.7), atol=1e-5)
        assert not (tokens[:-1] == END).any() and (len(tokens) == 8 or tokens[-1] == END)


def test_what_is_beside_a_row_does_not_change_it():
    model, how = letter_model(), Sampling(10, (END, 3, 4), 1.0)
    whole = sample("loop", model, PROMPTS, how, noise(4, 10))
    assert len(set(map(len, whole.tokens))) > 1  # some rows leave before others
    for rows in (1, 2, 3):
        parts = sample("loop", model, PROMPTS, Sampling(10, (END, 3, 4), 1.0, rows=rows), noise(4, 10))
        assert_same(parts, whole)
    alone = sample("loop", model, [PROMPTS[2]], how, noise(4, 10)[2:3])
    assert_same(alone, Samples(whole.tokens[2:3], whole.logprobs[2:3]))
    turned = sample("loop", model, PROMPTS[::-1], how, noise(4, 10).flip(0))
    assert_same(turned, Samples(whole.tokens[::-1], whole.logprobs[::-1]))


def assert_same(one, other):
    assert [row.tolist() for row in one.tokens] == [row.tolist() for row in other.tokens]
    assert torch.allclose(torch.cat(one.logprobs), torch.cat(other.logprobs), atol=1e-5)


@pytest.mark.parametrize("engine", ["loop", "generate"])
def test_every_engine_draws_from_the_tempered_softmax(engine):
    model, count = letter_model(), 3000
    with torch.no_grad():
        expected = torch.softmax(model(torch.tensor([[3]])).logits[0, -1] / 0.7, -1)
    # Defaults as checkpoints carry them: none of them may leak into sampling.
    model.generation_config = GenerationConfig(
        top_k=2, top_p=0.5, repetition_penalty=5.0, temperature=0.01, min_p=0.9, suppress_tokens=[0, 1, 2, 3]
    )
    kept = model.generation_config.to_dict()
    samples = sample(engine, model, [[3]] * count, Sampling(1, (), 0.7, rows=count), noise(count, 1))
    share = torch.stack(samples.tokens)[:, 0].bincount(minlength=WORDS) / count
    assert (share - expected).abs().max() < 0.03 and (expected > 0.03).sum() > 4
    assert model.generation_config.to_dict() == kept


@pytest.mark.parametrize("engine", ["loop", "generate"])
def test_a_completion_ends_with_any_of_the_stop_tokens_and_only_those(engine):
    model = letter_model(spread=0.05)
    model.generation_config.eos_token_id = 5
    stops = sample(engine, model, PROMPTS * 8, Sampling(12, (END, 7), 1.0), noise(32, 12)).tokens
    assert {row[-1].item() for row in stops if len(row) < 12} == {END, 7}
    assert all(not torch.isin(row[:-1], torch.tensor([END, 7])).any() for row in stops)
    never = sample(engine, model, PROMPTS * 8, Sampling(12, (), 1.0), noise(32, 12)).tokens
    assert {len(row) for row in never} == {12} and (torch.stack(never) == 5).any()


def test_the_generate_engine_takes_its_seed_from_the_noise_alone():
    model, how = letter_model(), Sampling(6, (END,))
    before = torch.get_rng_state()
    one, again, other = (sample("generate", model, PROMPTS, how, noise(4, 6, seed)).tokens for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert [row.tolist() for row in one] == [row.tolist() for row in again] != [row.tolist() for row in other]


def test_an_adapter_takes_part_in_sampling():
    from peft import get_peft_model

    adapted = get_peft_model(letter_model(), lora(init_lora_weights=False))
    model = adapted.get_base_model()
    samples = sample("loop", model, PROMPTS, Sampling(6, (END,), 0.7), noise(4, 6))
    for prompt, tokens, logprobs in zip(PROMPTS, samples.tokens, samples.logprobs, strict=True):
        assert torch.allclose(logprobs, recomputed(adapted, prompt, tokens, 0.7), atol=1e-5)
    with adapted.disable_adapter():
        assert not torch.allclose(recomputed(adapted, PROMPTS[0], samples.tokens[0], 0.7), samples.logprobs[0])


@pytest.mark.parametrize(
    ("kind", "engine"),
    [("gpt_neox", "loop"), ("gpt2", "loop"), ("gemma2", "loop"), ("mamba", "generate"), ("qwen3_next", "generate")],
)
def test_a_model_with_another_cache_is_left_to_generate(kind, engine):
    model = torch.nn.Module()
    model.config = AutoConfig.for_model(kind)
    assert choose_engine(model) == engine


def test_a_completion_is_cut_after_its_first_stop_token():
    how = Sampling(5, (9, 8))
    assert cut(torch.tensor([1, 8, 9, 0, 0]), how).tolist() == [1, 8]
    assert cut(torch.tensor([1, 2, 3, 4, 5, 9]), how).tolist() == [1, 2, 3, 4, 5]
    assert cut(torch.tensor([1, 2]), Sampling(5)).tolist() == [1, 2]

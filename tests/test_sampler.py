"""Sampling.

Every engine draws from softmax(logits / temperature) and reports the probability of each draw.
"""

import math

import pytest
import torch
from tiny_ppo import END, WORDS, letter_model, letter_trainer, lora
from transformers import (
    AutoConfig,
    GenerationConfig,
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.cache_utils import DynamicLayer
from vllm_there import STAND_IN

from runner.generate import sampler
from runner.generate.roomy_cache import RoomyLayer
from runner.generate.sampler import (
    Responses,
    Sampling,
    choose_engine,
    cut,
    evaluating,
    sample,
    sample_token,
    seeded_generator,
    truncate,
    uniform,
)
from runner.run.history import read_metrics

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
    # Evenly spread noise removes chance: each token is drawn in exact proportion.
    even = (torch.arange(count) + 0.5) / count
    tokens, logprobs = sample_token(logits.expand(count, -1), even, Sampling(temperature=0.7))
    expected = torch.softmax(logits / 0.7, -1)
    assert torch.allclose(tokens.bincount(minlength=5) / count, expected, atol=2 / count)
    assert torch.allclose(logprobs, expected.log()[tokens], atol=1e-6)


def test_random_noise_passes_a_chi_square_test():
    logits = torch.randn(12, generator=torch.Generator().manual_seed(1))
    count = 100_000
    tokens, _ = sample_token(
        logits.expand(count, -1), noise(count, 1)[:, 0], Sampling(temperature=1.3)
    )
    expected = torch.softmax(logits / 1.3, -1) * count
    # 11 degrees of freedom; 31.3 is exceeded once in a thousand times.
    assert ((tokens.bincount(minlength=12) - expected).square() / expected).sum() < 31.3


@pytest.mark.parametrize("end", [0.0, 1 - 2**-24, 1 - 2**-48])
def test_the_ends_of_the_noise_draw_no_impossible_token(end):
    logits = torch.full((1, 50_000), -torch.inf)
    logits[0, 7:40_000] = torch.randn(39_993, generator=torch.Generator().manual_seed(0))
    token, logprob = sample_token(logits, torch.tensor([end], dtype=torch.float64), Sampling())
    assert logprob.isfinite().all()
    assert 7 <= token.item() < 40_000


def test_each_of_150000_words_is_drawn_in_proportion():
    """Float32 cannot do it.

    Its sums and 24 bits of noise cannot tell words with a millionth of the mass apart.
    """
    words = torch.arange(100_003, 150_000, 1_999)
    logits = -torch.log1p(torch.arange(150_000.0)).expand(len(words), -1)
    ends = logits[0].double().softmax(-1).cumsum(-1)
    for inside in (0.02, 0.98):
        aims = ends[words - 1] + inside * (ends[words] - ends[words - 1])
        assert torch.equal(sample_token(logits, aims, Sampling())[0], words)
    drawn = uniform(3, 5, generator=seeded_generator(1))
    coarse = torch.rand(3, 5, generator=seeded_generator(1))
    assert drawn.dtype == torch.float64
    assert 0 < (drawn - coarse).max() < 2**-24
    assert ((drawn * 2**24) % 1).unique().numel() == 15


def test_a_scan_that_falls_draws_no_impossible_token(monkeypatch):
    """A scan on a GPU may fall, because its parts are rounded separately."""
    logits = torch.full((1, 8), -torch.inf)
    plain = torch.Tensor.cumsum
    logits[0, [1, 6]] = 0.0
    dip = torch.tensor([0, 0, -1e-3, 0, 0, 0, 0, 0], dtype=torch.float64)
    monkeypatch.setattr(
        torch.Tensor, "cumsum", lambda values, *args, **kwargs: plain(values, *args, **kwargs) + dip
    )
    monkeypatch.setattr(sampler, "IN_ORDER", frozenset())
    for noise_1 in torch.linspace(0.498, 0.502, 41, dtype=torch.float64).split(1):
        assert sample_token(logits, noise_1, Sampling())[0].item() in (1, 6)


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("asked", "chain"),
    [
        ({"top_k": 4}, [TopKLogitsWarper(4)]),
        ({"top_p": 0.7}, [TopPLogitsWarper(0.7)]),
        ({"top_k": 8, "top_p": 0.8}, [TopKLogitsWarper(8), TopPLogitsWarper(0.8)]),
    ],
    ids=["top_k", "top_p", "both"],
)
def test_of_what_top_k_and_top_p_leave_in_tokens_are_drawn_as_transformers_would(asked, chain):
    logits = torch.randn(12, generator=torch.Generator().manual_seed(1))
    count = 100_000
    chain = [TemperatureLogitsWarper(1.3), *chain]
    expected = LogitsProcessorList(chain)(torch.empty(1, 0), logits[None])[0].softmax(-1)
    allowed = expected > 0
    assert 2 < allowed.sum() < 9
    how = Sampling(temperature=1.3, **asked, logprob_temperature=1.0)
    even = (torch.arange(count) + 0.5) / count
    tokens, logprobs = sample_token(logits.expand(count, -1), even, how)
    assert torch.allclose(tokens.bincount(minlength=12) / count, expected, atol=2 / count)
    assert torch.allclose(
        logprobs, logits.log_softmax(-1)[tokens], atol=1e-6
    )  # of all tokens, at the other temperature
    drawn = sample_token(logits.expand(count, -1), noise(count, 1)[:, 0], how)[0].bincount(
        minlength=12
    )
    assert not drawn[~allowed].any()
    # Exceeded once in a thousand times with so many degrees of freedom.
    critical = {2: 13.8, 3: 16.3, 4: 18.5, 5: 20.5, 6: 22.5, 7: 24.3}[int(allowed.sum()) - 1]
    assert (
        (drawn - expected * count)[allowed].square() / (expected * count)[allowed]
    ).sum() < critical


def test_top_k_and_top_p_leave_out_the_unlikely():
    logits = torch.tensor([[0.4, 0.1, 0.3, 0.2]]).log()

    def kept(**how) -> list[int]:
        return truncate(logits, Sampling(**how))[0].isfinite().nonzero().flatten().tolist()

    assert kept(top_k=2) == [0, 2]
    assert kept(top_k=0) == [0, 1, 2, 3]
    assert kept(top_k=9) == [0, 1, 2, 3]
    assert kept(top_p=0.39) == [0]
    assert kept(top_p=0.41) == [0, 2]
    assert kept(top_p=0.95) == [0, 1, 2, 3]
    assert kept(top_k=3, top_p=0.6) == [0, 2]


def test_a_temperature_of_zero_takes_the_likeliest_token():
    logits = torch.randn(50, 12, generator=torch.Generator().manual_seed(1))
    tokens, logprobs = sample_token(logits, noise(50, 1)[:, 0], Sampling(temperature=0))
    assert torch.equal(tokens, logits.argmax(-1))
    assert torch.equal(logprobs, logits.log_softmax(-1).amax(-1))


# --- Whole completions --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["llama", "gpt2", "gpt_neox", "opt", "gemma2", "mistral"])
def test_the_loop_gives_the_log_probabilities_of_unpadded_rows(kind):
    # A window shorter than a row, where the architecture has one.
    model = letter_model(kind, **{"sliding_window": 4} if kind in ("gemma2", "mistral") else {})
    samples = sample(model, PROMPTS, Sampling(8, (END,), 0.7), noise(4, 8))
    for prompt, tokens, logprobs in zip(PROMPTS, samples.tokens, samples.logprobs, strict=True):
        assert torch.allclose(logprobs, recomputed(model, prompt, tokens, 0.7), atol=1e-5)
        assert not (tokens[:-1] == END).any()
        assert len(tokens) == 8 or tokens[-1] == END


def test_a_cache_that_grows_in_place_holds_what_the_librarys_holds():
    ours, library = RoomyLayer(), DynamicLayer()
    generator = torch.Generator().manual_seed(0)
    selections = {1: [0, 0, 1, 1, 2], 2: [4, 1, 3], 70: [1, 2]}
    for step in range(150):
        rows = library.keys.shape[0] if step else 3
        keys, values = torch.randn(2, rows, 2, 5 if not step else 1, 4, generator=generator)
        for layer in (ours, library):
            layer.update(keys, values)
            if step in selections:
                layer.batch_select_indices(torch.tensor(selections[step]))
        assert torch.equal(ours.keys, library.keys)
        assert torch.equal(ours.values, library.values)
    assert ours.get_seq_length() == 154


def test_a_row_does_not_depend_on_its_batch():
    model = letter_model()
    how = Sampling(10, (END, 3, 4), 1.0)
    all_rows = sample(model, PROMPTS, how, noise(4, 10))
    assert len(set(map(len, all_rows.tokens))) > 1  # some rows leave before others
    for rows in (1, 2, 3):
        parts = sample(model, PROMPTS, Sampling(10, (END, 3, 4), 1.0, rows=rows), noise(4, 10))
        assert_same(parts, all_rows)
    alone = sample(model, [PROMPTS[2]], how, noise(4, 10)[2:3])
    assert_same(alone, Responses(all_rows.tokens[2:3], all_rows.logprobs[2:3]))
    turned = sample(model, PROMPTS[::-1], how, noise(4, 10).flip(0))
    assert_same(turned, Responses(all_rows.tokens[::-1], all_rows.logprobs[::-1]))


@pytest.mark.grid(2)
@pytest.mark.quick(2)
@pytest.mark.parametrize("kind", ["llama", "gpt2", "gpt_neox", "opt"])
@pytest.mark.parametrize("stops", [(END, 3, 4), ()])
def test_the_steps_of_a_graph_draw_what_the_loop_draws(kind, stops):
    model = letter_model(kind)
    how = Sampling(20, stops, 0.7, max_length=24)
    first, second = (
        sample(model, PROMPTS, how, noise(4, 20), engine=engine) for engine in ("loop", "graph")
    )
    assert_same(first, second)
    assert len(set(map(len, first.tokens))) > 1


class Caching(torch.nn.Module):
    """A module that builds a table in its first pass and keeps it, like rotary angles."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.table = None

    def forward(self, *args):
        self.table = torch.ones(1) if self.table is None else self.table
        return self.inner(*args) * self.table


@pytest.mark.parametrize("engine", ["loop", "graph", "generate"])
def test_tensors_cached_while_sampling_can_be_trained_on(engine):
    model = letter_model()
    model.base_model.norm = Caching(model.base_model.norm)
    sample(model, PROMPTS, Sampling(3), noise(4, 3), engine=engine)
    assert model.base_model.norm.table is not None
    model(torch.tensor([PROMPTS[0]])).logits.sum().backward()
    assert model.base_model.norm.inner.weight.grad is not None


def assert_same(first, second):
    assert [row.tolist() for row in first.tokens] == [row.tolist() for row in second.tokens]
    assert torch.allclose(torch.cat(first.logprobs), torch.cat(second.logprobs), atol=1e-5)


@pytest.mark.parametrize("engine", ["loop", "graph", "generate"])
def test_every_engine_draws_from_the_tempered_softmax(engine):
    model = letter_model()
    count = 3000
    with torch.no_grad():
        expected = torch.softmax(model(torch.tensor([[3]])).logits[0, -1] / 0.7, -1)
    # Defaults as checkpoints carry them: none of them may leak into sampling.
    model.generation_config = GenerationConfig(
        top_k=2,
        top_p=0.5,
        repetition_penalty=5.0,
        temperature=0.01,
        min_p=0.9,
        suppress_tokens=[0, 1, 2, 3],
    )
    config_before = model.generation_config.to_dict()
    samples = sample(
        model, [[3]] * count, Sampling(1, (), 0.7, rows=count), noise(count, 1), engine=engine
    )
    share = torch.stack(samples.tokens)[:, 0].bincount(minlength=WORDS) / count
    assert (share - expected).abs().max() < 0.03
    assert (expected > 0.03).sum() > 4
    assert model.generation_config.to_dict() == config_before


@pytest.mark.parametrize("engine", ["loop", "graph", "generate"])
def test_a_completion_ends_with_any_stop_token_and_only_those(engine):
    model = letter_model(spread=0.05)
    model.generation_config.eos_token_id = 5
    stops = sample(
        model, PROMPTS * 8, Sampling(12, (END, 7), 1.0), noise(32, 12), engine=engine
    ).tokens
    assert {row[-1].item() for row in stops if len(row) < 12} == {END, 7}
    for row in stops:
        assert not torch.isin(row[:-1], torch.tensor([END, 7])).any()
    never = sample(model, PROMPTS * 8, Sampling(12, (), 1.0), noise(32, 12), engine=engine).tokens
    assert {len(row) for row in never} == {12}
    assert (torch.stack(never) == 5).any()


def test_the_generate_engine_takes_its_seed_from_the_noise_alone():
    model = letter_model()
    how = Sampling(6, (END,))
    before = torch.get_rng_state()
    draws = (
        sample(model, PROMPTS, how, noise(4, 6, seed), engine="generate").tokens
        for seed in (0, 0, 1)
    )
    first, again, third = draws
    assert torch.equal(torch.get_rng_state(), before)
    assert (
        [row.tolist() for row in first]
        == [row.tolist() for row in again]
        != [row.tolist() for row in third]
    )


def test_an_adapter_takes_part_in_sampling():
    from peft import get_peft_model

    adapted = get_peft_model(letter_model(), lora(init_lora_weights=False))
    model = adapted.get_base_model()
    samples = sample(model, PROMPTS, Sampling(6, (END,), 0.7), noise(4, 6))
    for prompt, tokens, logprobs in zip(PROMPTS, samples.tokens, samples.logprobs, strict=True):
        assert torch.allclose(logprobs, recomputed(adapted, prompt, tokens, 0.7), atol=1e-5)
    with adapted.disable_adapter():
        assert not torch.allclose(
            recomputed(adapted, PROMPTS[0], samples.tokens[0], 0.7), samples.logprobs[0]
        )


@pytest.mark.parametrize(
    ("kind", "engine"),
    [
        ("gpt_neox", "loop"),
        ("gpt2", "loop"),
        ("gemma2", "loop"),
        ("mamba", "generate"),
        ("qwen3_next", "generate"),
    ],
)
def test_a_model_with_another_cache_is_left_to_generate(kind, engine):
    model = WithCache()
    model.config = AutoConfig.for_model(kind)
    assert choose_engine(model) == engine


class WithCache(torch.nn.Module):
    """The forward pass of most models, as to its arguments."""

    def forward(self, input_ids, past_key_values=None): ...


class WithRenamedCache(torch.nn.Module):
    """The forward pass of models in transformers 5.24."""

    def forward(self, input_ids, cache=None): ...


class WithCacheOfAnyName(torch.nn.Module):
    """A forward pass that would ignore a cache of ours."""

    def forward(self, input_ids, **settings): ...


@pytest.mark.parametrize(
    ("model_class", "engine"),
    [(WithCache, "loop"), (WithRenamedCache, "loop"), (WithCacheOfAnyName, "generate")],
)
def test_a_model_that_would_ignore_our_cache_is_left_to_generate(model_class, engine):
    model = model_class()
    model.config = AutoConfig.for_model("gpt2")
    assert choose_engine(model) == engine


def test_a_completion_is_cut_after_its_first_stop_token():
    assert cut(torch.tensor([1, 8, 9, 0, 0]), (9, 8)).tolist() == [1, 8]
    assert cut(torch.tensor([1, 2]), ()).tolist() == [1, 2]


def test_every_part_of_a_model_keeps_its_mode():
    model = torch.nn.Sequential(torch.nn.Linear(1, 1).eval(), torch.nn.Linear(1, 1))
    with evaluating(model):
        for part in model.modules():
            assert not part.training
    assert [part.training for part in model.modules()] == [True, False, True]


# --- vLLM: a stand-in for the package, which takes half a minute to start ------------------------

VLLM_RUN = (
    "trainer=ppo",
    "trainer.args.rollout_engine=vllm",
    "dataset.limit.train=64",
    "dataset.limit.eval=8",
)
VLLM_RUN += (
    "metric=none",
    "trainer.args.max_steps=2",
    "trainer.args.logging_steps=1",
    "learning_rate=1e-2",
    "name=run",
)
SHARDED = ("strategy=fsdp2", "launcher.num_processes=2", "trainer.args.bf16=false")


@pytest.mark.grid(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [["peft=lora", "trainer.args.vllm_enable_sleep_mode=true"], SHARDED]
)
def test_vllm_samples_from_the_current_policy(runner, settings):
    words = (*VLLM_RUN, *settings, "tolerate.ended_worse=true")
    door = "vllm_there:with_vllm"
    runner(*words, door=door, RUNNER_TEST_FSDP_ON_CPU="1", **STAND_IN)
    lines = [
        line for line in read_metrics(runner.runs("run")[0] / "metrics.jsonl") if "loss" in line
    ]
    assert abs(lines[0]["objective/kl"]) < 1e-4 < abs(lines[1]["objective/kl"])
    for line in lines:  # PPO computes the same probabilities for its tokens
        for kind in ("min", "mean", "max"):
            assert line[f"sampling/importance_sampling_ratio/{kind}"] == pytest.approx(1, abs=1e-3)


@pytest.mark.grid(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [VLLM_RUN, ["trainer=grpo", "trainer.args.use_vllm=true"]], ids=["ppo", "grpo"]
)
def test_vllm_is_asked_for_where_it_is_and_missed_where_it_is_not(runner, words):
    missing = runner(*words, "--dry-run", code=5)
    assert "pip install vllm==0.30.0" in missing.stderr
    installed = runner.cold(*words, "--dry-run", **STAND_IN)
    assert installed.returncode == 0, installed.stderr


class Elsewhere:
    """Samples by the policy itself, and claims that each token was so many times less likely."""

    def __init__(self, trainer, times):
        self.trainer = trainer
        self.times = times

    def refresh(self, trainer):
        pass

    def sample(self, prompts, how, noise_BR):
        drawn = sample(self.trainer.actor_critic.policy, prompts, how, noise_BR)
        return Responses(
            drawn.tokens, [logprobs_R - math.log(self.times) for logprobs_R in drawn.logprobs]
        )


@pytest.mark.slow
def test_tokens_drawn_too_rarely_by_another_sampler_weigh_more_up_to_a_limit(tmp_path):
    norms = {}
    ratios = {}
    for times in (1.0, 2.0, 40.0, math.nan):
        trainer = letter_trainer(tmp_path, max_steps=1, num_ppo_epochs=1, vf_coef=0.0, kl_coef=0.0)
        trainer.vllm = Elsewhere(trainer, times)
        trainer.train()
        norms[times] = trainer.state.log_history[0]["grad_norm"]
        ratios[times] = trainer.state.log_history[0]["sampling/importance_sampling_ratio/mean"]
    base, *longer = norms.values()
    assert [norm / base for norm in longer] == pytest.approx([2, 3, 1], rel=1e-4)
    assert [*ratios.values()] == pytest.approx([1, 2, 40, 1], rel=1e-4)

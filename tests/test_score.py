"""Rewards of PPO: functions and models of every kind, called alike, checked, weighed and named."""

import asyncio
from functools import partial

import numpy as np
import pytest
import torch
from peft import get_peft_model
from tiny_ppo import END, letter_model, letter_tokenizer, lora
from transformers import AutoConfig, AutoModelForSequenceClassification

from runner.errors import ConfigError, RunnerError, SickRun
from runner.generate.completion import Completion
from runner.generate.earned import Rewards, step_ends
from runner.reward.reading import REWARD_KEY

TOKENIZER = letter_tokenizer()
NONE = -9.0  # stands for a token that was given no reward


def completions(*texts: str, prompts: tuple[str, ...] = ("abc", "d", "ef"), **columns):
    """Completions that ended where their text ends with a dot, and their rows."""
    made = []
    rows = []
    for row, (prompt, text) in enumerate(zip(prompts, texts, strict=False)):
        finish = "stop" if text.endswith(".") else "length"
        text = text.removesuffix(".")
        ids = TOKENIZER(text)["input_ids"] + [END] * (finish == "stop") if text else [END]
        made.append(Completion(row, 0, prompt, TOKENIZER(prompt)["input_ids"], text, ids, finish))
        rows.append({"prompt": prompt} | {name: values[row] for name, values in columns.items()})
    return made, rows


def ids_of(asked) -> list[list[int]]:
    """The tokens of each prompt and its completion."""
    return [completion.prompt_ids + completion.token_ids for completion in asked[0]]


def build(*rewards, weights=None, tokenizer=TOKENIZER, **asked) -> Rewards:
    return Rewards(rewards, weights, tokenizer, **asked)


def score(*rewards, asked=None, weights=None, budget=512, **kwargs):
    earned, sums = build(*rewards, weights=weights, **kwargs)(
        *(asked or completions("ab.", "c", "de.")), None, budget
    )
    return earned.nansum(1), earned.nan_to_num(NONE), sums


def faults(*rewards, **kwargs) -> str:
    with pytest.raises(RunnerError) as error:
        score(*rewards, **kwargs)
    assert error.value.code in (2, 3)
    for fault in error.value.faults:
        assert fault.where
        assert fault.found
        assert fault.expected
    return str(error.value)


# --- Functions ----------------------------------------------------------------------------------


def test_a_function_gets_the_columns_and_what_grpo_gives():
    columns = {}

    def keep(**kwargs):
        columns.update(kwargs)
        return [0.0, 1.0]

    Rewards([keep], None, TOKENIZER)(*completions("ab.", "c", wanted=["x", "y"]), "state", 512)
    assert columns["prompts"] == ["abc", "d"]
    assert columns["completions"] == ["ab", "c"]
    assert columns["completion_ids"] == [[0, 1, END], [2]]
    assert columns["wanted"] == ["x", "y"]
    assert columns["trainer_state"] == "state"


def test_rewards_add_up_with_their_weights_and_none_does_not_apply():
    def one(completions, **_):
        return [1.0, None, 3]

    def two(completions, **_):
        return [10.0, 20.0, None]

    total, earned, sums = score(one, two, weights=[2.0, 0.5])
    assert total.tolist() == [7.0, 10.0, 6.0]
    # by the last token of each
    assert earned.tolist() == [[NONE, NONE, 7.0], [10.0, NONE, NONE], [NONE, NONE, 6.0]]
    # without weights, for the log
    assert sums.nan_to_num(-1).tolist() == [[1, 10], [-1, 20], [3, -1]]


def test_async_rewards_wait_side_by_side():
    order = []

    async def slow(completions, **_):
        order.append("slow begins")
        await asyncio.sleep(0.01)
        order.append("slow ends")
        return [1.0] * 3

    async def fast(completions, **_):
        order.append("fast")
        return [2.0] * 3

    outcome, _, sums = score(slow, lambda **_: [3.0] * 3, fast)
    assert order == ["slow begins", "fast", "slow ends"]
    assert outcome.tolist() == [6.0] * 3
    assert sums[0].tolist() == [1.0, 3.0, 2.0]


@pytest.mark.parametrize(
    "give",
    [
        lambda count: np.full(count, 0.5, dtype=np.float32),
        lambda count: torch.full((count,), 0.5),
        lambda count: [np.float32(0.5)] * count,
        lambda count: [torch.tensor(0.5)] * count,
        lambda count: (0.5 for _ in range(count)),
    ],
    ids=["array", "tensor", "numbers of an array", "tensors", "generator"],
)
def test_a_reward_may_come_from_any_library(give):
    assert score(lambda completions, **_: give(len(completions)))[0].tolist() == [0.5] * 3


def test_a_reward_per_token_or_per_step_lands_where_it_was_earned():
    asked = completions("ab\ncd\ne.", "ab", "a\n")
    by_token = [[*range(8)], [5.0, 6.0], torch.tensor([1.0, 2.0])]
    _, earned, sums = score(lambda **_: by_token, asked=asked)
    assert earned[0, :8].tolist() == [*range(8)]
    assert earned[2, :2].tolist() == [1.0, 2.0]
    assert (earned[1:, 2:] == NONE).all()
    assert sums[:, 0].tolist() == [28.0, 11.0, 3.0]
    by_step = [[1.0, 2.0, 3.0], [4.0], [5.0]]
    total, earned, _ = score(
        lambda **_: by_step, lambda **_: [1.0] * 3, asked=asked, weights=[2.0, 1.0]
    )
    assert total.tolist() == [13.0, 9.0, 11.0]
    # Before each newline, and before the end token, which earns the score of the whole.
    assert earned[0, :8].tolist() == [NONE, 2, NONE, NONE, 4, NONE, 6, 1]
    assert earned[1:, :2].tolist() == [[NONE, 9], [10, 1]]


def test_steps_end_with_the_token_that_completes_their_text():
    ids = TOKENIZER("abbabbcd")["input_ids"]
    assert step_ends(TOKENIZER, ids, "bb") == [0, 3, 7]
    assert step_ends(TOKENIZER, ids[:6], "bb") == [0, 3]
    assert step_ends(TOKENIZER, [*ids, END], "z") == [7]
    assert step_ends(TOKENIZER, [END], "z") == [0]


# --- What a reward may not give -----------------------------------------------------------------


def test_no_reward_is_refused():
    with pytest.raises(ConfigError, match="no reward") as error:
        build()
    assert error.value.faults[0].fix


def test_weights_of_another_number_are_refused():
    with pytest.raises(ConfigError, match="1 weights for 2 rewards") as error:
        build(lambda **_: [], lambda **_: [], weights=[1.0])
    assert error.value.faults[0].fix


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (1.0, "a list with a number for each completion"),
        ([1.0], "1 rewards for 3 completions"),
        ([1.0, 1.0, float("inf")], "inf for completion 2 of 3"),
        ([1.0, 1.0, "1.0"], "for completion 2 of 3"),
        ([1.0, 1.0, [1.0, None]], "for completion 2 of 3"),
        ([1.0, 1.0, torch.tensor(float("nan"))], "nan for completion 2 of 3"),
        ([1.0, 1.0, [float("nan")] * 3], "nan for completion 2 of 3"),
    ],
    ids=str,
)
def test_an_answer_that_is_no_reward_is_refused_as_everywhere(answer, message):
    text = faults(lambda **_: [1.0] * 3, named := lambda **_: answer)
    assert message in text
    assert f"reward.{named.__name__}_1" in text


def test_a_model_without_a_finite_score_is_refused():
    model = letter_model(labels=1)
    model.score.weight.data.fill_(float("nan"))
    with pytest.raises(SickRun, match="nan for completion 0 of 3"):
        score(model)


def test_a_row_to_which_no_reward_applies_is_refused():
    text = faults(lambda **_: [None, 1.0, None], lambda **_: [None, None, 2.0])
    assert "every reward returned None for completion 0 of 3" in text


def test_a_list_of_neither_the_tokens_nor_the_steps_is_refused():
    text = faults(lambda **_: [[1.0, 2.0], [1.0], [1.0]], asked=completions("ab.", "c", "de."))
    assert "2 rewards for a completion of 3 tokens and 1 steps" in text
    assert "step_separator" in text
    assert "0 rewards" in faults(lambda **_: [[], [1.0], [1.0]])


# --- Reward models ------------------------------------------------------------------------------


@torch.no_grad()
def plain_score(model, ids):
    """The score that transformers gives to one unpadded row."""
    return model(torch.tensor([ids])).logits.item()


@pytest.mark.parametrize("pad", [END, None, 0, -1])
@pytest.mark.parametrize("budget", [1, 512])
@pytest.mark.parametrize("kind", ["llama", "gpt2", "opt"])
def test_a_model_scores_a_text_as_transformers_does_alone_whatever_pads(pad, budget, kind):
    model = letter_model(kind, labels=1, pad_token_id=pad)
    asked = completions("ab.", "c", ".")  # the third is nothing but the end token
    outcome, _, _ = score(model, asked=asked, budget=budget)
    rows = ids_of(asked)
    assert [row[-1] for row in rows] == [END, 2, END]
    assert outcome.tolist() == pytest.approx([plain_score(model, row) for row in rows], abs=1e-5)


def test_a_model_of_another_tokenizer_reads_the_text():
    second_tokenizer = letter_tokenizer()
    # Its letters have other ids.
    vocabulary = {
        token: (index + 1) % 20 if index < 20 else index
        for token, index in TOKENIZER.get_vocab().items()
    }
    second_tokenizer = type(second_tokenizer)(
        tokenizer_object=recoded(second_tokenizer, vocabulary), eos_token="<end>"
    )
    model = letter_model(labels=1)
    asked = completions("ab.", "c")
    outcome, _, _ = score(model, asked=asked, tokenizers=[second_tokenizer])
    rows = [[1, 2, 3, 1, 2, END], [4, 3]]  # abcab<end>, dc: an end only where the completion ended
    assert outcome.tolist() == pytest.approx([plain_score(model, row) for row in rows], abs=1e-5)
    assert build(model, tokenizers=[second_tokenizer]).model_for_critic() is None
    assert build(model).model_for_critic() is model


def recoded(tokenizer, vocabulary):
    import json

    from tokenizers import Tokenizer

    state = json.loads(tokenizer.backend_tokenizer.to_str())
    state["model"]["vocab"] = vocabulary
    return Tokenizer.from_str(json.dumps(state))


def test_a_model_reads_a_closed_chat():
    tokenizer = letter_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.content + '<end>' }}{% endfor %}"
        "{% if add_generation_prompt %}t{% endif %}"
    )
    model = letter_model(labels=1)
    prompt = [{"role": "user", "content": "ab"}]
    asked = [Completion(0, 0, prompt, [0, 1, END, 19], "c", [2, END], "stop")], [{"prompt": prompt}]
    outcome, _, _ = score(model, asked=asked, tokenizer=tokenizer)
    assert outcome.item() == pytest.approx(plain_score(model, [0, 1, END, 2, END]), abs=1e-5)


def test_a_model_reads_with_the_tokenizer_beside_it(tmp_path):
    folder = tmp_path / "judge"
    model = letter_model(labels=1)
    model.save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    loaded = AutoModelForSequenceClassification.from_pretrained(folder)
    rewards = build(loaded, lambda **_: [0.0] * 2)
    assert rewards.names == ["judge", "<lambda>"]
    asked = completions("ab.", "c")
    outcome = rewards(*asked, None, 512)[0].nansum(1)
    rows = ids_of(asked)
    assert outcome.tolist() == pytest.approx([plain_score(model, row) for row in rows], abs=1e-5)
    assert type(rewards.model_for_critic()) is type(model)


def test_a_model_without_a_score_layer_gives_its_logit():
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    model = BertForSequenceClassification(BertConfig(vocab_size=24, num_labels=1, **sizes)).eval()
    asked = completions("ab.", "c")
    outcome, _, _ = score(model, asked=asked)
    with torch.no_grad():
        expected = [model(torch.tensor([ids])).logits.item() for ids in ids_of(asked)]
    assert outcome.tolist() == pytest.approx(expected, abs=1e-5)
    assert build(model).model_for_critic() is None


def test_a_model_of_two_labels_is_refused_where_it_could_pass_for_two_rewards_per_token():
    assert "2 labels" in faults(letter_model(labels=2))


def test_a_text_too_long_for_a_model_is_reported():
    model = letter_model("gpt2", labels=1)
    positions = model.config.max_position_embeddings
    asked = completions("ab." + "c" * positions)
    with pytest.raises(ConfigError, match=f"has {positions} positions") as raised:
        score(model, asked=asked)
    assert "reward=classifier" in raised.value.faults[0].fix
    setattr(model, REWARD_KEY, "reward.mine")
    with pytest.raises(ConfigError) as raised:
        score(model, asked=asked)
    (fault,) = raised.value.faults
    assert fault.where == "reward.mine"
    assert "reward.mine._target_=runner.reward.outcome.Classifier" in fault.fix


def test_a_model_scores_without_dropout():
    model = letter_model("gpt2", labels=1, embd_pdrop=0.5).train()
    assert score(model)[0].tolist() == score(model)[0].tolist()


def test_a_model_may_carry_an_adapter():
    adapted = get_peft_model(
        letter_model(labels=1), lora(task_type="SEQ_CLS", init_lora_weights=False)
    )
    asked = completions("ab.", "c")
    outcome, _, _ = score(adapted, asked=asked)
    rows = ids_of(asked)
    merged = adapted.merge_and_unload()
    assert outcome.tolist() == pytest.approx([plain_score(merged, row) for row in rows], abs=1e-5)


def test_names_that_repeat_are_numbered():
    assert build(len, len, sorted).names == ["len_0", "len_1", "sorted"]


@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_scores_are_float32_where_models_read_in_bfloat16(kind):
    """Of a model whose head is not called ``score``, too."""
    if kind == "bert":
        sizes = {
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
        }
        config = AutoConfig.for_model(
            "bert", vocab_size=24, num_labels=1, initializer_range=0.3, **sizes
        )
        model = AutoModelForSequenceClassification.from_config(config)
    else:
        model = letter_model(labels=1, seed=3)
    asked = completions("ab.", "c", "de.")
    in_float32 = build(model)(*asked, None, 512)[1]
    rewards = build(model)
    rewards.autocast = partial(torch.autocast, "cpu", torch.bfloat16)
    half = rewards(*asked, None, 512)[1]
    assert torch.allclose(in_float32, half, atol=0.1)
    assert (half != half.bfloat16()).any()

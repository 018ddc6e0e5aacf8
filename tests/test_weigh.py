"""Weights of tokens.

Rules, the places of messages in a template's text, losses by hand, and refusals.
"""

import copy
import json
from functools import partial

import pytest
import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn.functional import logsigmoid
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from runner.__main__ import main
from runner.config.composition import compose
from runner.config.menu import read_menu
from runner.config.override import expand
from runner.dataset.weigh import (
    answers,
    by_column,
    by_message,
    columns_of,
    last_round,
    pattern,
)
from runner.dataset.weighed_rows import WeightCollator, pack_rows
from runner.dataset.weigher import WEIGHTS, Weigher
from runner.errors import ConfigError, DataError
from runner.io.files import shipped
from runner.run import open_run

TALK = [
    {"role": "system", "content": "sort"},
    {"role": "user", "content": "Sort these digits: 7 3"},
    {"role": "assistant", "content": "3 7"},
    {"role": "user", "content": "good 1 2"},
    {"role": "assistant", "content": "1 2"},
]
# Templates that write more than role and content: thoughts of the last answer only, calls of tools,
# trimmed text.
THINKING = (
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.last %}<think>\n\n"
    "{{ m.reasoning_content or '' }}\n</think>\n{% endif %}"
    "{{ m.content | trim }}"
    "{% if m.tool_calls %}<tool_call>{{ m.tool_calls[0].function.name }}"
    "</tool_call>{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
RESTLESS = "{% for m in messages %}{{ m.content }}{{ messages[0].content | length }}{% endfor %}"


@pytest.fixture(scope="module")
def tiny():
    return AutoTokenizer.from_pretrained(shipped("runner://model/tiny"))


@pytest.fixture
def tokenizer(tiny):
    return copy.copy(tiny)


def token_weights(row, rules, tokenizer):
    return Weigher(rules, tokenizer)(row)


def trained(tokenizer, row, *rules, name="token_weights", least=0.0):
    """The text of the tokens that weigh more than ``least``."""
    ids, weights = token_weights(row, rules, tokenizer)[name]
    return tokenizer.decode(
        [token for token, weight in zip(ids, weights, strict=True) if weight > least]
    )


# --- Rules --------------------------------------------------------------------------------------


def test_rules_return_a_number_for_each_message():
    assert answers(TALK, rest=0.5) == [0.5, 0.5, 1.0, 0.5, 1.0]
    assert last_round(TALK, weight=3.0) == [0.0, 0.0, 0.0, 0.0, 3.0]
    assert by_message([{"role": "user"}, {"role": "assistant", "weight": 0}], default=2.0) == [
        0.0,
        0,
    ]
    assert by_column(TALK, row={"weight": 0.25}) == [0.25] * 5
    assert pattern(TALK, "[0-9]+")[1:3] == [(1.0, []), (1.0, [(0, 1, 2.0), (2, 3, 2.0)])]


def test_columns_are_the_arguments_without_a_value():
    assert columns_of(answers) == frozenset()
    assert columns_of(by_column) == {"row"}
    assert columns_of(lambda messages, grade, scale=1.0: []) == {"grade"}
    assert columns_of(lambda messages, grade, **kwargs: []) == {"grade", "row"}


# --- Row -> weights -----------------------------------------------------------------------------


def test_answers_come_with_their_end_and_without_their_opening(tokenizer):
    assert trained(tokenizer, {"messages": TALK}, answers) == "3 7<|im_end|>1 2<|im_end|>"
    assert trained(tokenizer, {"messages": TALK}, last_round) == "1 2<|im_end|>"


def test_the_answers_are_those_that_the_template_marks(tokenizer):
    theirs = tokenizer.apply_chat_template(
        TALK, return_dict=True, return_assistant_tokens_mask=True
    )
    ids, weights = token_weights({"messages": TALK}, [answers], tokenizer)["token_weights"]
    assert ids == theirs["input_ids"]
    assert weights == [float(bit) for bit in theirs["assistant_masks"]]


def test_without_a_lighter_message_all_tokens_weigh_alike(tokenizer):
    ids, weights = token_weights({"messages": TALK}, [partial(answers, rest=1.0)], tokenizer)[
        "token_weights"
    ]
    assert set(weights) == {1.0}
    assert ids == tokenizer.apply_chat_template(TALK)["input_ids"]


def test_template_text_weighs_as_little_as_the_lightest_message(tokenizer):
    ids, weights = token_weights(
        {"messages": TALK}, [lambda messages: [0.5, 1, 2, 1, 2]], tokenizer
    )["token_weights"]
    starts = [
        weight
        for token, weight in zip(ids, weights, strict=True)
        if tokenizer.decode(token) == "<|im_start|>"
    ]
    assert starts == [0.5] * 5


def test_rules_multiply(tokenizer):
    rules = [answers, lambda messages: pattern(messages, "7", weight=4.0, rest=0.5)]
    ids, weights = token_weights({"messages": TALK}, rules, tokenizer)["token_weights"]
    by_rule = {
        tokenizer.decode(token): weight
        for token, weight in zip(ids, weights, strict=True)
        if weight
    }
    assert by_rule == {"3": 0.5, " 7": 4.0, "<|im_end|>": 0.5, "1": 0.5, " 2": 0.5}


@pytest.fixture(scope="module")
def bytewise():
    """A byte-level BPE like Qwen's, whose tokens carry the blank before a word and cut words
    anywhere.
    """
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    texts = ["the secret café is 42 cats", "a secret of  two cats"] * 2
    inner.train_from_iterator(
        texts, trainers.BpeTrainer(initial_alphabet=letters, show_progress=False)
    )
    return PreTrainedTokenizerFast(tokenizer_object=inner)


@pytest.mark.parametrize("weight", [0.0, 3.0])
@pytest.mark.parametrize(
    ("finding", "tokens"),
    [
        ("secret", [" secret"]),
        (r" \w+", [" secret", " café", " is", " 42", " cats"]),
        ("cat", [" cats"]),  # a part of a token takes it whole
        ("is 4", [" is", " 42"]),
        ("secret ", [" secret"]),  # the blank belongs to the token of the next word
        ("é|the", ["the", " café"]),
        (r"\s", []),
    ],
)
def test_a_token_with_a_letter_of_a_span_takes_its_weight(bytewise, finding, tokens, weight):
    row = {"prompt": "", "completion": "the secret café is 42 cats"}
    ids, weights = token_weights(
        row, [lambda messages: pattern(messages, finding, weight)], bytewise
    )["token_weights"]
    assert set(weights) <= {weight, 1.0}
    pairs = zip(map(bytewise.decode, ids), weights, strict=True)
    assert [token for token, token_weight in pairs if token_weight == weight] == tokens


def test_of_several_spans_and_rules_the_larger_counts_and_the_product(bytewise, tokenizer):
    cats = [lambda messages: [(1.0, [(0, 3, 0.0), (3, 5, 3.0)])]]  # both in the same token
    assert token_weights({"text": " cats"}, cats, bytewise)["token_weights"][1] == [3.0]
    two = [
        lambda messages: pattern(messages, "ca", 2.0),
        lambda messages: pattern(messages, "ts", 3.0),
    ]
    assert token_weights({"text": " cats"}, two, bytewise)["token_weights"][1] == [6.0]
    silent = lambda messages: pattern(messages, "7", weight=0.0)  # noqa: E731
    assert trained(tokenizer, {"messages": TALK}, answers, silent) == "3<|im_end|>1 2<|im_end|>"
    blanks = [lambda messages: pattern(messages, " +", weight=0.0)]
    assert token_weights({"text": "of  two"}, blanks, bytewise)["token_weights"][1].count(0.0) == 1


def test_plain_text_becomes_a_user_turn_and_an_assistant_turn(tokenizer):
    row = {"prompt": "Sort these digits: 7 3\n", "completion": "3 7"}
    assert trained(tokenizer, row, answers) == "3 7<|im_end|>"
    assert trained(tokenizer, row, lambda messages: [1.0, 0.0]) == row["prompt"]
    assert trained(tokenizer, {"text": "3 7"}, answers) == "3 7<|im_end|>"


def test_a_pair_has_weights_of_both_sides(tokenizer):
    row = {
        "prompt": TALK[:2],
        "chosen": TALK[2:3],
        "rejected": [{"role": "assistant", "content": "7 3"}],
    }
    assert trained(tokenizer, row, answers, name="chosen_weights") == "3 7<|im_end|>"
    assert trained(tokenizer, row, answers, name="rejected_weights") == "7 3<|im_end|>"


def test_thoughts_and_calls_of_tools_belong_to_the_answer(tokenizer):
    tokenizer.chat_template = THINKING
    call = [{"type": "function", "function": {"name": "look", "arguments": {}}}]
    talk = [
        {"role": "user", "content": "  3? "},
        {"role": "assistant", "content": "", "tool_calls": call},
        {"role": "tool", "content": "7"},
        {"role": "assistant", "content": "7", "reasoning_content": "so it is"},
    ]
    thinking = "<tool_call>look</tool_call><|im_end|><think>\n\nso it is\n</think>\n7<|im_end|>"
    assert trained(tokenizer, {"messages": talk}, answers) == thinking

    def silent(messages):
        return pattern(messages, r"(?s)<think>.*</think>\s*", weight=0.0)

    assert (
        trained(tokenizer, {"messages": talk}, answers, silent)
        == "<tool_call>look</tool_call><|im_end|>7<|im_end|>"
    )


def test_a_template_without_a_place_for_a_message_is_refused(tokenizer):
    tokenizer.chat_template = RESTLESS
    with pytest.raises(DataError, match="differently, depending on this message"):
        token_weights({"messages": TALK}, [answers], tokenizer)


@pytest.mark.parametrize("entry", [-1.0, float("nan"), "2", True, (1.0, [(0, 1, -2.0)])])
def test_values_that_are_no_weights_are_refused(tokenizer, entry):
    with pytest.raises(DataError, match="a number of at least 0"):
        token_weights({"messages": TALK}, [lambda messages: [entry] * len(messages)], tokenizer)


def test_a_rule_must_return_a_number_for_each_message(tokenizer):
    with pytest.raises(DataError, match="1 entries for 5 messages"):
        token_weights({"messages": TALK}, [lambda messages: [1.0]], tokenizer)


def test_a_missing_column_is_named(tokenizer):
    with pytest.raises(DataError, match="'weight'"):
        token_weights({"messages": TALK, "grade": 2}, [by_column], tokenizer)


# --- Batches ------------------------------------------------------------------------------------


def padded(rows, key, side="right"):
    longest = max(len(row[key]) for row in rows)
    ids = [row[key] + [0] * (longest - len(row[key])) for row in rows]
    mask = [[1] * len(row[key]) + [0] * (longest - len(row[key])) for row in rows]
    if side == "left":
        ids = [row[::-1] for row in ids]
        mask = [row[::-1] for row in mask]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


@pytest.mark.parametrize(
    ("side", "placed"), [("right", [[2, 3, 1], [4, 1, 1]]), ("left", [[1, 2, 3], [1, 1, 4]])]
)
def test_weights_stand_where_the_tokens_do(side, placed):
    rows = [{"ids": [5, 6], "token_weights": [2.0, 3.0]}, {"ids": [7], "token_weights": [4.0]}]

    def collate(rows):
        wide = [row | {"ids": row["ids"] + [0]} for row in rows[:1]]
        batch = padded([*wide, *rows[1:]], "ids", side)
        batch["attention_mask"][0][2 if side == "right" else 0] = 0
        return batch

    assert WeightCollator(collate)(rows)["token_weights"].tolist() == placed


@pytest.mark.parametrize(
    ("mode", "expected"), [("keep_start", [1.0, 2.0]), ("keep_end", [2.0, 3.0])]
)
def test_weights_are_cut_as_the_tokens_are(mode, expected):
    class Collator:
        truncation_mode = mode

        def __call__(self, rows):
            return padded([{"ids": [5, 6]}], "ids")

    assert WeightCollator(Collator())([{"token_weights": [1.0, 2.0, 3.0]}])[
        "token_weights"
    ].tolist() == [expected]


def test_tokens_that_weigh_nothing_leave_the_mask():
    def collate(rows):
        return padded([{"ids": [5, 6, 7]}] * 2, "ids") | {
            "completion_mask": torch.tensor([[0, 1, 1]] * 2)
        }

    rows = [{"chosen_weights": [0.0, 0.0, 2.0], "rejected_weights": [1.0, 1.0, 1.0]}]
    assert WeightCollator(collate)(rows)["completion_mask"].tolist() == [[0, 0, 1], [0, 1, 1]]


def test_sequences_in_one_row_have_their_weights_in_one_row():
    def collate(rows):
        return {
            "input_ids": torch.tensor([[5, 6, 7, 0]]),
            "position_ids": torch.tensor([[0, 1, 0, 0]]),
        }

    rows = [{"token_weights": [1.0, 2.0]}, {"token_weights": [3.0]}]
    assert WeightCollator(collate)(rows)["token_weights"].tolist() == [[1.0, 2.0, 3.0, 1.0]]


# --- What is refused before anything loads ------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("trainer=grpo", "learns from rewards"),
        ("trainer=orpo", "averages over them by itself"),
        ("trainer=reward", "whole answers"),
        ("trainer=gkd trainer.teacher_model.path=runner://model/tiny", "distance to a teacher"),
        (
            "trainer=sft trainer.args.assistant_only_loss=true",
            "weight=answers leaves the same tokens",
        ),
        ("trainer=sft trainer.args.loss_type=dft", "loss=rescaled"),
        ("trainer=sft loss._target_=runner.validate.dangers.find_risks allow=[runner]", ""),
        ("trainer=dpo trainer.args.precompute_ref_log_probs=true", "computed without weights"),
        ("trainer=dpo trainer.args.use_weighting=true", "log-probabilities without weights"),
        ("trainer=kto trainer.args.precompute_ref_log_probs=true", "computed without weights"),
        ("weight.rets=1", "rest"),
        ("weight=anwsers", "weight=answers"),
        ("weight._target_=shutil.rmtree", "may not run"),
    ],
)
def test_a_fault_is_reported(capsys, words, message):
    assert main(["weight=answers", *words.split(), "metric=none"]) == 2
    assert message in capsys.readouterr().err


# --- By hand, in float64 ------------------------------------------------------------------------

DIGITS = ("weight=pattern", "weight.pattern='[0-9]+'", "weight.weight=3", "weight.rest=0.5")


@pytest.fixture
def laid_out(tmp_path, monkeypatch):
    """The components of an untrained run, and its first batch, with a policy that differs from its
    reference.
    """
    from runner.launch.compose.stages import compose_runs
    from runner.launch.signals import Stop
    from runner.training.components.assembly import build_components

    monkeypatch.chdir(tmp_path)

    def build(*words):
        words = [
            *words,
            "metric=none",
            "trainer.args.per_device_train_batch_size=4",
            "dataset.limit.train=8",
        ]
        (composed,) = compose_runs([*words, "name=hand"])
        trainer = build_components(open_run(composed.cfg, composed.overrides), Stop()).trainer
        torch.manual_seed(0)
        with torch.no_grad():
            for parameter in trainer.model.parameters():
                parameter.add_(0.01 * torch.randn_like(parameter))
        return trainer, next(iter(trainer.get_train_dataloader()))

    return build


def logps(model, ids, mask):
    """The log-probability of each token but the first, in float64."""
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=mask).logits.double()
    return logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)


def expected_weights(trainer, ids, mask):
    """3 for an assistant token with a digit, else 0.5; read from the tokens, without a template."""
    words = [[trainer.processing_class.decode(token) for token in row] for row in ids]
    weights = torch.zeros(ids.shape, dtype=torch.float64)
    for row, sequence in enumerate(words):
        speaks = False
        for place, word in enumerate(sequence):
            speaks = (speaks or word == "assistant") and word != "<|im_end|>"
            weights[row, place] = (
                3.0 if speaks and any(letter.isdigit() for letter in word) else 0.5
            )
    return (weights * mask)[:, 1:]


def assert_loss(trainer, batch, expected):
    loss = trainer.compute_loss(trainer.model, dict(batch))
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


def sums(trainer, model, batch, prefix=""):
    ids = batch[f"{prefix}input_ids"]
    mask = batch[f"{prefix}attention_mask"]
    weights = expected_weights(trainer, ids, mask) * batch[f"{prefix}completion_mask"][:, 1:]
    return (logps(model, ids, mask) * weights).sum(1)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["messages", "prompt_completion"])
def test_sft_by_hand(laid_out, tmp_path, form):
    talk = [{"role": "user", "content": "1 2"}, {"role": "assistant", "content": "2 1 7"}]
    rows = [{"messages": talk + talk[::1] * turns} for turns in range(8)]
    if form == "prompt_completion":
        rows = [
            {"prompt": row["messages"][:-1], "completion": row["messages"][-1:]} for row in rows
        ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    trainer, batch = laid_out("trainer=sft", "dataset=local", "dataset.path=rows.jsonl", *DIGITS)
    weights = expected_weights(trainer, batch["input_ids"], batch["attention_mask"])
    is_trained = (batch["labels"] != -100)[:, 1:]
    by_hand = (
        -(
            logps(trainer.model, batch["input_ids"], batch["attention_mask"]) * weights * is_trained
        ).sum()
        / 50
    )
    loss = trainer.compute_loss(trainer.model, dict(batch), num_items_in_batch=50)
    assert loss.item() == pytest.approx(by_hand.item(), rel=1e-5)
    mean = by_hand * 50 / is_trained.sum()
    assert_loss(trainer, batch, mean)


@pytest.mark.slow
def test_a_loss_and_weights_by_hand(laid_out):
    trainer, batch = laid_out("trainer=sft", "loss=focal", *DIGITS)
    weights = expected_weights(trainer, batch["input_ids"], batch["attention_mask"])
    values = logps(trainer.model, batch["input_ids"], batch["attention_mask"])
    is_trained = (batch["labels"] != -100)[:, 1:]
    by_hand = -((1 - values.exp()) ** 2 * values * weights * is_trained).sum() / is_trained.sum()
    assert_loss(trainer, batch, by_hand)


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["none", "length_normalised"])
def test_dpo_by_hand(laid_out, loss):
    trainer, batch = laid_out("trainer=dpo", "kl_coef=0.3", f"loss={loss}", *DIGITS)
    chosen, rejected = (
        sums(trainer, trainer.model, batch) - sums(trainer, trainer.ref_model, batch)
    ).chunk(2)
    if loss != "none":
        lengths = batch["completion_mask"].sum(1).chunk(2)
        chosen = chosen / lengths[0]
        rejected = rejected / lengths[1]
    by_hand = -logsigmoid(0.3 * (chosen - rejected)).mean()
    assert abs(chosen - rejected).max() > 1e-3
    assert_loss(trainer, batch, by_hand)


@pytest.mark.slow
def test_dpo_with_an_adapter_by_hand(laid_out):
    trainer, batch = laid_out("trainer=dpo", "peft=lora", *DIGITS)
    policy = sums(trainer, trainer.model, batch)
    with trainer.model.disable_adapter():
        chosen, rejected = (policy - sums(trainer, trainer.model, batch)).chunk(2)
    by_hand = -logsigmoid(0.1 * (chosen - rejected)).mean()
    assert abs(chosen - rejected).max() > 1e-3
    assert_loss(trainer, batch, by_hand)


@pytest.mark.slow
def test_kto_by_hand(laid_out):
    trainer, batch = laid_out("trainer=kto", "kl_coef=0.3", *DIGITS)
    ratios = sums(trainer, trainer.model, batch) - sums(trainer, trainer.ref_model, batch)
    mismatched = sums(trainer, trainer.model, batch, "KL_") - sums(
        trainer, trainer.ref_model, batch, "KL_"
    )
    signs = torch.where(batch["label"].bool(), 1.0, -1.0)
    by_hand = (1 - torch.sigmoid(0.3 * signs * (ratios - mismatched.mean().clamp(min=0)))).mean()
    assert abs(ratios).max() > 1e-3
    assert_loss(trainer, batch, by_hand)


@pytest.mark.grid(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "passes"),
    [
        ("trainer=sft loss=label_smoothed weight=answers", 1),
        ("trainer=sft loss=focal", 1),
        ("trainer=dpo loss=margin weight=answers", 2),
        # the reference's is computed once, before the first step
        ("trainer=dpo loss=margin peft=lora", 1),
        ("trainer=reward loss=none", 1),
    ],
)
def test_a_loss_costs_no_forward_pass(laid_out, words, passes):
    trainer, batch = laid_out(*words.split())
    models = {
        id(model): model for model in (trainer.model, getattr(trainer, "ref_model", None)) if model
    }
    forward_calls = []
    hooks = [
        model.register_forward_pre_hook(lambda *arguments: forward_calls.append(arguments))
        for model in models.values()
    ]
    trainer.compute_loss(trainer.model, dict(batch))
    for hook in hooks:
        hook.remove()
    assert len(forward_calls) == passes


# --- Through the command ------------------------------------------------------------------------

FEW = (
    "trainer.args.max_steps=3",
    "trainer.args.logging_steps=1",
    "metric=none",
    "dataset.limit.eval=4",
)
SMALL = (*FEW, "dataset.limit.train=64", "trainer.args.per_device_train_batch_size=8")
ONES = ("weight=pattern", "weight.pattern=nowhere")


def weights(done):
    assert (done.code, done.state()) == (0, "finished")
    return next(done.run.model.glob("*model.safetensors")).read_bytes()


@pytest.mark.parametrize("strategy", ["bfd", "wrapped"])
def test_packed_rows_keep_the_weight_of_each_token(strategy):
    ids = [[1, 2, 3], [4, 5], [6]]
    rows = {"input_ids": ids, "labels": ids, WEIGHTS: [[token / 8 for token in row] for row in ids]}
    packed = pack_rows(Dataset.from_dict(rows), 0, seq_length=4, strategy=strategy, shuffle=True)
    pairs = []
    for row in packed:
        pairs += zip(row["input_ids"], row[WEIGHTS], strict=True)
    assert sorted(pairs) == [(token, token / 8) for token in range(1, 7)]


@pytest.mark.grid(2)
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The `'keep_end'` truncation mode is deprecated:FutureWarning")
@pytest.mark.parametrize(
    "words",
    [
        "trainer=sft trainer.args.gradient_accumulation_steps=2 "
        "trainer.args.max_length=20 tolerate.truncated=1 "
        "tolerate.no_end=true",
        "trainer=sft trainer.args.packing=true trainer.args.max_length=64",
        "trainer=sft trainer.args.packing=true "
        "trainer.args.max_length=64 trainer.args.packing_strategy=wrapped "
        "trainer.args.shuffle_dataset=true",
        "trainer=sft trainer.args.padding_free=true trainer.args.max_length=null",
        "trainer=sft dataset=toy_demonstrations peft=p_tuning collator=buckets",
        (
            "trainer=sft trainer.args.max_length=18 "
            "trainer.args.truncation_mode=keep_end tolerate.truncated=1"
        ),
        "trainer=dpo trainer.args.loss_type=[sigmoid_norm,sft] trainer.args.loss_weights=[1.0,0.5] "
        "trainer.args.max_length=20 trainer.args.truncation_mode=keep_end tolerate.truncated=1",
        "trainer=dpo peft=lora trainer.args.gradient_accumulation_steps=2",
        "trainer=kto peft=lora trainer.args.loss_type=apo_zero_unpaired",
    ],
)
def test_weights_of_one_change_no_bit(train, words):
    theirs = train(*words.split(), *SMALL, name="theirs")
    ours = train(*words.split(), *ONES, *SMALL, name="ours")
    assert weights(ours) == weights(theirs)


@pytest.mark.slow
def test_answers_only_is_what_the_trainer_masks(train, tmp_path):
    """The rule and TRL's own mask, from a template that marks answers, train the same bits."""
    rows = []
    for n in range(10):
        turns = [{"role": "user", "content": f"{n} 3"}, {"role": "assistant", "content": f"3 {n}"}]
        rows.append({"messages": turns * 2})
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    words = (
        "trainer=sft",
        "dataset=local",
        f"dataset.path={tmp_path}/rows.jsonl",
        "trainer.args.max_steps=3",
    )
    words = (*words, "metric=none", "trainer.args.per_device_train_batch_size=4")
    theirs = train(*words, "trainer.args.assistant_only_loss=true", name="theirs")
    assert weights(train(*words, "weight=answers", name="ours")) == weights(theirs)
    assert weights(train(*words, "weight=last_round", name="last")) != weights(theirs)


@pytest.mark.slow
def test_messages_may_carry_their_weights(train, tmp_path):
    """Weights beside role and content leave the same tokens as the rule for the last round."""
    talk = [{"role": "user", "content": "7 3"}, {"role": "assistant", "content": "3 7"}] * 2
    marked = [
        turn | ({"weight": 1} if place == 3 else {"weight": 0}) for place, turn in enumerate(talk)
    ]
    for name, turns in (("plain", talk), ("marked", marked)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join([json.dumps({"messages": turns})] * 8))
    words = ("trainer=sft", "dataset=local", "trainer.args.max_steps=2", "metric=none")
    last = train(*words, f"dataset.path={tmp_path}/plain.jsonl", "weight=last_round", name="last")
    by_message = train(
        *words, f"dataset.path={tmp_path}/marked.jsonl", "weight=message", name="own"
    )
    assert weights(by_message) == weights(last)


@pytest.mark.slow
def test_twice_the_weight_is_twice_the_loss(train, tmp_path):
    rows = [{"prompt": f"{n}", "completion": f" {n} 3", "grade": 2.0} for n in range(8)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    words = ("trainer=sft", "dataset=local", f"dataset.path={tmp_path}/rows.jsonl", *FEW[:3])
    twice = train(*words, "weight=column", "weight.column=grade", name="twice")
    once = train(*words, name="once")
    assert twice.lines[1]["loss"] == pytest.approx(2 * once.lines[1]["loss"])


@pytest.mark.slow
def test_several_rules_are_typed_as_a_list():
    rules = compose(
        expand(["weight=[answers, tool_calls]", "weight.answers.rest=0.1"], read_menu())
    ).cfg["weight"]
    assert rules["answers"]["rest"] == 0.1
    assert rules["tool_calls"]["_target_"] == "runner.dataset.weigh.pattern"


@pytest.mark.slow
@pytest.mark.parametrize("entry", ["override /weight", "/weight"])
def test_a_list_of_rules_in_a_file_is_answered_with_its_right_form(tmp_path, entry):
    text = "# @package _global_\ndefaults:\n  - {}\n"
    file = tmp_path / "experiment" / "mine.yaml"
    file.parent.mkdir()
    file.write_text(text.format(f"{entry}: [answers, tool_calls]"))
    with pytest.raises(ConfigError) as raised:
        compose(["experiment=mine"], [tmp_path])
    told = raised.value.faults[0].fix.partition("  (")[0]
    assert told == "/weight@weight.answers: answers"
    file.write_text(text.format(f"{told}\n  - {told.replace('answers', 'tool_calls')}"))
    assert [*compose(["experiment=mine"], [tmp_path]).cfg["weight"]] == [
        "answers",
        "tool_calls",
    ]


@pytest.mark.slow
def test_several_rules_and_what_a_row_lacks(train, tmp_path, capsys):
    words = ("trainer=dpo", "weight.first._target_=runner.dataset.weigh.answers", *SMALL)
    rule = "weight.second._target_=runner.dataset.weigh.by_column"
    assert train(*words, rule, "weight.second.column=grade", name="lacks").code == 2
    assert "grade" in capsys.readouterr().err
    weights(
        train(
            *words,
            "weight.second._target_=runner.dataset.weigh.pattern",
            "weight.second.pattern='[13]'",
            name="two",
        )
    )


@pytest.mark.slow
def test_micro_batches_of_any_size_weigh_alike(train):
    losses = []
    for size, rounds in ((16, 1), (4, 4)):
        words = ("dataset=toy_reviews", "trainer=sft", *DIGITS, *FEW, "dataset.limit.train=64")
        sizes = [f"trainer.args.per_device_train_batch_size={size}"]
        sizes += [f"trainer.args.gradient_accumulation_steps={rounds}"]
        losses.append(
            [
                line["loss"]
                for line in train(*words, *sizes, name=f"of-{size}").lines
                if line["step"]
            ]
        )
    assert losses[0] == pytest.approx(losses[1], rel=2e-5)


@pytest.mark.slow
def test_a_model_without_token_weights_is_reported_before_the_first_step(train, capsys):
    done = train("trainer=sft", "weight=pattern", "weight.pattern=nowhere", "weight.rest=0", *SMALL)
    assert done.code == 2
    assert "all of whose tokens have weight 0" in capsys.readouterr().err

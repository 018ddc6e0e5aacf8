"""A reward model gives a text one score, whoever reads it.

The score that transformers gives the text alone.
"""

import json
from pathlib import Path

import pytest
import torch
from tiny import tiny_model
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from runner.generate.answer_reader import AnswerReader
from runner.generate.completion import Completion
from runner.generate.earned import Rewards
from runner.generate.reward_model import ModelReward
from runner.model.load import load_model, load_tokenizer
from runner.reward.outcome import Classifier, load_reward_model
from runner.reward.panel import RewardTracker
from runner.reward.process import ProcessModel

PROMPT = "On day 3 Anna went to the park."
ANSWERS = [" Anna saw a dog at the park and came home.", " Nobody.", ""]
PADS = {
    "is the end": {},  # GPT-2 has one special token
    "is none": {"pad_token_id": None},
    "is another": {"pad_token_id": 5},
    "is not in the vocabulary": {"pad_token_id": -1},
}


@pytest.fixture(scope="module", params=PADS)
def folder(request, tmp_path_factory) -> Path:
    """A reward model whose config has another padding token than its tokenizer, or the same."""
    folder = tmp_path_factory.mktemp("scorer")
    tiny_model(folder, "gpt2")
    torch.manual_seed(3)
    tokenizer = load_tokenizer(str(folder))
    model = load_model(str(folder), tokenizer=tokenizer, head="score")
    torch.nn.init.normal_(model.score.weight)
    model.save_pretrained(folder)
    tokenizer.padding_side = "left"
    tokenizer.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    assert config["pad_token_id"] == config["eos_token_id"]
    (folder / "config.json").write_text(json.dumps(config | PADS[request.param]))
    return folder


@torch.no_grad()
def alone(folder: Path, texts: list[list[int]]) -> list[float]:
    """The score that transformers gives to each text alone."""
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    return pytest.approx([model(torch.tensor([ids])).logits.item() for ids in texts], abs=1e-5)


def to_completions(tokenizer, *, ended: bool) -> list[Completion]:
    made = []
    prompt_ids = tokenizer(PROMPT)["input_ids"]
    for row, text in enumerate(ANSWERS[: 3 if ended else 2]):
        ids = tokenizer(text)["input_ids"] + [tokenizer.eos_token_id] * ended
        made.append(
            Completion(row, 0, PROMPT, prompt_ids, text, ids, "stop" if ended else "length")
        )
    return made


@pytest.mark.slow
@pytest.mark.parametrize("ended", [True, False])
def test_ppo_and_trl_trainers_score_a_text_as_if_alone(folder, ended):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = load_reward_model(str(folder))
    made = to_completions(tokenizer, ended=ended)
    expected = alone(
        folder, [[*completion.prompt_ids, *completion.token_ids] for completion in made]
    )
    rewards = Rewards([model], None, tokenizer)
    for budget in (1, 512):
        assert rewards(made, [{}] * len(made), None, budget)[1][:, 0].tolist() == expected
    as_trl = ModelReward("model", model, tokenizer, RewardTracker(), {})
    padded = [completion.token_ids + [tokenizer.eos_token_id] * 3 * ended for completion in made]
    answers = [completion.text for completion in made]
    assert (
        as_trl(prompts=[PROMPT] * len(made), completions=answers, completion_ids=padded) == expected
    )
    assert as_trl.tracker.earned == {"model": expected}


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [1, 3])
def test_evaluate_and_classifiers_score_a_text_as_if_alone(folder, batch_size):
    tokenizer = load_tokenizer(str(folder))
    texts = [PROMPT + answer for answer in ANSWERS]
    closed = [tokenizer(text + tokenizer.eos_token)["input_ids"] for text in texts]
    model = load_model(str(folder), tokenizer=tokenizer, head="score")
    rows = [{"prompt": PROMPT, "completion": answer, "label": True} for answer in ANSWERS]
    reader = AnswerReader(model, tokenizer, batch_size=batch_size)
    assert reader.score(rows) == alone(folder, closed)
    classifier = Classifier(str(folder), batch_size=batch_size)
    for end in ("", tokenizer.eos_token):
        shown = classifier([answer + end for answer in ANSWERS], [PROMPT] * 3)
        assert shown == alone(folder, [tokenizer(text + end)["input_ids"] for text in texts])
    process = ProcessModel(str(folder), separator="\n", gives="logit", batch_size=batch_size)
    steps = alone(
        folder, [tokenizer(PROMPT + answer.strip() + "\n")["input_ids"] for answer in ANSWERS[:2]]
    )
    assert process([PROMPT] * 2, ANSWERS[:2]) == steps


def test_a_classifier_cuts_texts_to_the_positions_that_a_model_has(folder, tmp_path):
    """RoBERTa's begin behind its padding token's, and its config counts all of them."""
    tokenizer = load_tokenizer(str(folder))
    config = RobertaConfig(
        vocab_size=len(tokenizer),
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_labels=1,
        max_position_embeddings=16,
        pad_token_id=tokenizer.pad_token_id,
    )
    RobertaForSequenceClassification(config).save_pretrained(tmp_path)
    tokenizer.model_max_length = 10**30
    tokenizer.save_pretrained(tmp_path)
    classifier = Classifier(str(tmp_path))
    assert classifier.max_length == 16 - tokenizer.pad_token_id - 1
    assert len(classifier([PROMPT * 20], [""])) == 1

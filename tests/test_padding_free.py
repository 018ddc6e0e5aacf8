"""Rows laid end to end have the states, the gradients and the update that they have alone."""

import itertools
import json

import pytest
import torch
from tiny_ppo import farthest, letter_model, letter_trainer, lora, weights

from runner.model import padding_free as rows_in_a_line
from runner.model.padding_free import ROW_BY_ROW, make_padding_free, to_line_arguments
from runner.ppo.batching import fill_by_tokens
from runner.reward.reading import last_hidden_states

ROWS = [[3, 1, 4, 1, 5, 9, 2], [6], [5, 3, 5, 8, 9]]


def read(trunk, ids, **kwargs):
    """The states of all tokens of some rows, and the gradient of the sum of their squares for the
    trunk.
    """
    trunk.zero_grad()
    hidden = last_hidden_states(
        trunk, torch.tensor(ids), torch.arange(sum(map(len, ids))), **kwargs
    )
    hidden.square().sum().backward()
    return hidden.detach(), {name: weight.grad.clone() for name, weight in trunk.named_parameters()}


@pytest.mark.parametrize(
    "rows", [ROWS, [row[:1] * 4 + row[-1:] for row in ROWS]], ids=["ragged", "one length"]
)
@pytest.mark.parametrize("kind", ["llama", "gpt_neox", "gpt2", "qwen3", "opt"])
def test_rows_end_to_end_are_as_they_are_alone(kind, rows):
    trunk = letter_model(kind).base_model
    alone = [read(trunk, [row]) for row in rows]
    assert make_padding_free(trunk)
    line = to_line_arguments(list(map(len, rows)), trunk.device)
    together, gradient = read(trunk, [list(itertools.chain(*rows))], **line)
    assert torch.allclose(together, torch.cat([hidden for hidden, _ in alone]), atol=1e-5)
    for name, joined in gradient.items():
        assert torch.allclose(
            joined, sum(gradients[name] for _, gradients in alone), atol=1e-3, rtol=1e-4
        ), name


@pytest.mark.parametrize("kind", ["llama", "gpt_neox"])
def test_padded_rows_are_read_as_before(kind):
    trunk = letter_model(kind).base_model
    before = trunk(torch.tensor(ROWS[:1])).last_hidden_state
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1]])
    masked = trunk(torch.tensor(ROWS[:1]), attention_mask=mask).last_hidden_state
    assert make_padding_free(trunk)
    assert trunk.config._attn_implementation == ROW_BY_ROW
    assert torch.equal(trunk(torch.tensor(ROWS[:1])).last_hidden_state, before)
    assert torch.equal(trunk(torch.tensor(ROWS[:1]), attention_mask=mask).last_hidden_state, masked)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("mistral", {"sliding_window": 3}),
        ("llama", {"_attn_implementation": "eager"}),
        ("bloom", {"n_head": 2}),
    ],
)
def test_a_model_that_cannot_is_padded(kind, changes):
    trunk = letter_model(kind, **changes).base_model
    before = trunk.config._attn_implementation
    assert not make_padding_free(trunk)
    assert trunk.config._attn_implementation == before


def test_a_model_that_does_not_hand_on_where_rows_end_is_padded():
    # with small random weights, rows would hardly affect each other
    trunk = letter_model(spread=0.02).base_model
    trunk.register_forward_pre_hook(
        lambda _, __, asked: asked.pop("row_lengths", None) and None, with_kwargs=True
    )
    assert not make_padding_free(trunk)
    assert trunk.config._attn_implementation == "sdpa"


def test_a_model_that_raises_is_left_unchanged(monkeypatch):
    trunk = letter_model().base_model.train()
    before = trunk.config._attn_implementation
    monkeypatch.setattr(rows_in_a_line, "to_line_arguments", None)
    with pytest.raises(TypeError):
        make_padding_free(trunk)
    assert trunk.training
    assert trunk.config._attn_implementation == before


@pytest.mark.grid(1)
@pytest.mark.slow
@pytest.mark.parametrize("case", [{}, {"peft_config": lora()}, {"critic": "head"}])
def test_the_update_is_that_of_padded_rows(tmp_path, case):
    updates = []
    for padding_free in (True, False):
        trainer = letter_trainer(tmp_path, optim="sgd", learning_rate=0.3, **case)
        assert trainer.padding_free
        trainer.padding_free = padding_free
        told = []
        trainer.actor_critic.backbone.trunk.register_forward_pre_hook(
            lambda _, __, asked, told=told: told.append("row_lengths" in asked), with_kwargs=True
        )
        trainer.train()
        assert any(told) == padding_free
        updates.append(weights(trainer))
    assert farthest(*updates) < 1e-4


@pytest.mark.slow
def test_saved_models_do_not_depend_on_it(tmp_path):
    trainer = letter_trainer(tmp_path)
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    for path in (
        tmp_path / "saved" / "config.json",
        tmp_path / "saved" / "value_model" / "config.json",
    ):
        assert ROW_BY_ROW not in path.read_text()
        assert json.loads(path.read_text())["model_type"] == "llama"


def test_groups_are_few_and_about_equally_long():
    lengths = [20, 50, 40, 39, 90, 10]
    assert fill_by_tokens(range(6), lengths, budget=80) == [[4], [1], [2, 5], [3, 0]]
    assert fill_by_tokens([], lengths, budget=80) == []
    many = [(7 * row) % 120 + 8 for row in range(40)]
    groups = fill_by_tokens(range(40), many, budget=640)
    sizes = [sum(many[row] for row in group) for group in groups]
    assert sorted(itertools.chain(*groups)) == list(range(40))
    assert len(groups) == -(-sum(many) // 640)
    assert max(sizes) <= 640
    assert max(sizes) - min(sizes) <= 8

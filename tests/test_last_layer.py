"""The last layer computes the states that are read, and those are unchanged."""

import itertools

import pytest
import torch
from tiny_ppo import farthest, letter_model, letter_trainer, lora, weights

from runner.model import padding_free
from runner.model.padding_free import make_padding_free, to_line_arguments
from runner.ppo import PPOTrainer, token_logprobs
from runner.ppo.last_layer import READ_POSITIONS, leave_out_unread

ROWS = [[3, 1, 4, 1, 5, 9, 2], [6, 2], [5, 3, 5, 8, 9]]
READ = [4, 5, 6, 8, 12, 13]


def line_trunk(kind="llama", **changes):
    trunk = letter_model(kind, **changes).base_model
    assert make_padding_free(trunk)
    return trunk


def read(trunk, **arguments):
    """The states at READ of rows end to end, and the gradient of the sum of their squares."""
    trunk.zero_grad()
    ids = torch.tensor([list(itertools.chain(*ROWS))])
    line = to_line_arguments([len(row) for row in ROWS], trunk.device)
    states = trunk(ids, use_cache=False, **line, **arguments).last_hidden_state[0, READ]
    states.square().sum().backward()
    return states.detach(), {name: weight.grad.clone() for name, weight in trunk.named_parameters()}


def read_some(trunk):
    return read(trunk, **{READ_POSITIONS: torch.tensor(READ)})


def tokens_in(part):
    """The numbers of tokens that a part is called with, once it is."""
    counts = []
    part.register_forward_pre_hook(lambda _, args: counts.append(args[0].shape[1]))
    return counts


@pytest.mark.parametrize("kind", ["llama", "gpt_neox", "gpt2", "qwen3"])
def test_states_that_are_read_and_gradients_stay(kind):
    trunk = line_trunk(kind)
    expected, expected_gradients = read(trunk)
    assert leave_out_unread(trunk)
    layers = trunk.h if kind == "gpt2" else trunk.layers
    first, last = (tokens_in(layer.mlp) for layer in layers)
    states, gradients = read_some(trunk)
    assert (first, last) == ([14], [len(READ)])
    assert torch.allclose(states, expected, atol=1e-5)
    for name, gradient in gradients.items():
        assert torch.allclose(gradient, expected_gradients[name], atol=1e-3, rtol=1e-4), name
    everything, _ = read(trunk)
    assert torch.equal(everything, expected)
    assert last == [len(READ), 14]


def test_a_layer_that_is_computed_again_reads_the_same():
    trunk = line_trunk()
    assert leave_out_unread(trunk)
    states, gradients = read_some(trunk)
    trunk.activation_checkpointing_enable({"use_reentrant": False})
    last = tokens_in(trunk.layers[-1].mlp)
    again, gradients_again = read_some(trunk.train())
    assert last == [len(READ)] * 2
    assert torch.equal(states, again)
    assert farthest(gradients, gradients_again) == 0


def test_queries_of_the_last_layer_begin_where_states_are_read(monkeypatch):
    trunk = line_trunk()
    assert leave_out_unread(trunk)
    shapes = []
    attend = padding_free.sdpa_attention_forward

    def watch(module, query, key, value, mask, **kwargs):
        shapes.append((query.shape[2], key.shape[2]))
        return attend(module, query, key, value, mask, **kwargs)

    monkeypatch.setattr(padding_free, "sdpa_attention_forward", watch)
    read_some(trunk)
    assert shapes == [(7, 7), (2, 2), (5, 5), (3, 7), (1, 2), (2, 5)]


class Mixing(torch.nn.Linear):
    """A part that looks at the tokens before."""

    def forward(self, states):
        return super().forward(states.cumsum(1))


def test_a_part_that_looks_at_other_tokens_stays_whole():
    trunk = line_trunk()
    trunk.layers[-1].mlp = Mixing(16, 16)
    expected, _ = read(trunk)
    assert not leave_out_unread(trunk)
    assert torch.equal(read_some(trunk)[0], expected)


def test_a_layer_of_single_matrices_stays_whole():
    assert not leave_out_unread(line_trunk("opt"))


@pytest.mark.slow
@pytest.mark.grid(1)
@pytest.mark.parametrize("case", [{}, {"peft_config": lora()}, {"critic": "head"}])
def test_the_update_is_that_of_whole_layers(tmp_path, monkeypatch, case):
    updates = []
    for name in (READ_POSITIONS, "nobody_reads_this"):
        monkeypatch.setattr(token_logprobs, "READ_POSITIONS", name)
        trainer = letter_trainer(tmp_path, optim="sgd", learning_rate=0.3, **case)
        trainer.train()
        updates.append(weights(trainer))
    assert farthest(*updates) < 1e-4


@pytest.mark.parametrize("leaves_out", [True, False])
def test_a_training_that_began_before_computes_all_of_the_last_layer(
    leaves_out, tmp_path, monkeypatch
):
    monkeypatch.setattr(PPOTrainer, "skips_padding", leaves_out)
    trunk = letter_trainer(tmp_path).actor_critic.backbone.trunk
    hooks = [part for part in trunk.modules() if part._forward_pre_hooks]
    assert bool(hooks) is leaves_out

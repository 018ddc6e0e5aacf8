"""Policy and critic in one module.

The numbers of the plain models, one backbone, and nothing frozen.
"""

import pytest
import torch
from peft import PeftModel, get_peft_model
from safetensors.torch import load_file
from tiny_ppo import END, WORDS, letter_model, lora
from transformers import AutoModel, AutoModelForSequenceClassification

from runner.model.saved import find_missing
from runner.ppo import token_logprobs
from runner.ppo.actor_critic import (
    CRITIC,
    NO_ADAPTER,
    REFERENCE,
    ActorCritic,
    build_reference,
    disable_dropout,
)
from runner.ppo.batching import MicroBatch
from runner.ppo.critic import build_critic_model
from runner.ppo.token_logprobs import TokenLogProbs

# Two rows padded on the right, whose last three and two tokens are the response.
IDS = torch.tensor([[1, 2, 3, 4, 5, END], [6, 7, END, 0, 0, 0]])
POSITIONS = torch.tensor([2, 3, 4, 6, 7])
TARGETS = torch.tensor([4, 5, END, 7, END])
BATCH = MicroBatch(range(2), IDS, POSITIONS, TARGETS, torch.tensor([0, 1, 2, 3, 4]))


def build(critic: str) -> ActorCritic:
    """One of the kinds of critic, with weights that tell policy, critic and reference apart."""
    policy = letter_model() if critic != "adapter" else letter_policy()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        made = ActorCritic(
            policy, critic, letter_model(labels=1, seed=5) if critic == "model" else None
        )
        if critic != "model":
            torch.nn.init.normal_(made.value_head.weight)
            made.value_head.bias.data.fill_(0.5)
    return made


def letter_policy() -> PeftModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return get_peft_model(letter_model(), lora(init_lora_weights=False))


def plain_logprobs(model, temperature=1.0):
    """The log-probabilities of whole unpadded rows by the model's own logits."""
    rows = [(IDS[:1], slice(2, 5), IDS[0, 3:]), (IDS[1:, :3], slice(0, 2), IDS[1, 1:3])]
    parts = []
    for ids, where, targets in rows:
        logprobs = torch.log_softmax(model(ids).logits[0, where] / temperature, -1)
        parts.append(logprobs.gather(1, targets[:, None])[:, 0])
    return torch.cat(parts)


# --- Log-probabilities --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["llama", "gpt2", "gpt_neox", "opt", "gemma2", "llama4_text"])
def test_log_probabilities_are_those_of_the_models_own_logits(kind):
    changes = {"final_logit_softcapping": 0.8, "sliding_window": 3} if kind == "gemma2" else {}
    model = letter_model(kind, **changes)
    ours = TokenLogProbs(model)
    assert ours.is_plain == (kind != "gemma2")
    assert torch.allclose(ours(BATCH, 0.7), plain_logprobs(model, 0.7), atol=1e-5)


@pytest.mark.parametrize("elements", [1, 2 * WORDS, 1 << 22])
def test_gradients_do_not_depend_on_the_chunks_of_logits(elements, monkeypatch):
    monkeypatch.setitem(token_logprobs.LOGITS_PER_CHUNK, "cpu", elements)
    model = letter_model()
    upstream = torch.arange(1.0, 6.0)
    plain_logprobs(model, 0.7).backward(upstream)
    expected = {name: weight.grad.clone() for name, weight in model.named_parameters()}
    model.zero_grad()
    TokenLogProbs(model)(BATCH, 0.7).backward(upstream)
    for name, weight in model.named_parameters():
        assert torch.allclose(weight.grad, expected[name], atol=1e-5), name


# --- The kinds of critic ------------------------------------------------------------------------


@pytest.mark.parametrize("critic", ["model", "adapter", "head"])
def test_each_critic_leaves_the_log_probabilities_alone(critic):
    made = build(critic)
    logprobs, values = made(BATCH, 0.7)
    assert torch.allclose(logprobs, plain_logprobs(made.policy, 0.7), atol=1e-5)
    assert torch.allclose(values, made.values(BATCH), atol=1e-6)
    assert values.std() > 0.01


@pytest.mark.parametrize("capped", [False, True])
def test_a_head_reads_the_policys_states(capped):
    policy = letter_model("gemma2", final_logit_softcapping=0.8) if capped else letter_model()
    made = ActorCritic(policy, "head")
    made.value_head.weight.data.normal_(generator=torch.Generator().manual_seed(0))
    states = policy.base_model(IDS).last_hidden_state.flatten(0, 1)[POSITIONS]
    logprobs, values = made(BATCH, 1.0)
    assert torch.allclose(values, made.value_head(states)[:, 0], atol=1e-5)
    assert torch.allclose(logprobs, plain_logprobs(policy), atol=1e-5)


def test_an_adapter_gives_three_models_on_one_backbone():
    made = build("adapter")
    base = letter_model()
    policy = made(BATCH)[0]
    with torch.no_grad():
        reference = made.reference_logprobs(BATCH, 1.0)
    assert torch.allclose(reference, plain_logprobs(base), atol=1e-5)
    assert not torch.allclose(policy, reference, atol=1e-2)
    with made.adapter(CRITIC):
        critic = made.backbone(BATCH, 1.0)
    assert not torch.allclose(critic, policy, atol=1e-2)
    assert not torch.allclose(critic, reference, atol=1e-2)
    assert torch.equal(made(BATCH)[0], policy)  # back where it was


def test_peft_freezes_the_adapter_that_is_not_active():
    """When this fails, peft no longer does it, and ActorCritic need not thaw what trains."""
    policy = letter_policy()
    policy.add_adapter("second", lora())
    policy.set_adapter("second")
    for name, p in policy.named_parameters():
        if ".default." in name:
            assert not p.requires_grad
    policy.set_adapter("default")
    with policy.disable_adapter():
        pass
    for name, p in policy.named_parameters():
        if ".second." in name:
            assert not p.requires_grad


def test_both_adapters_learn_after_a_look_at_the_reference():
    made = build("adapter")
    with torch.no_grad():
        made.reference_logprobs(BATCH, 1.0)
    logprobs, values = made(BATCH)
    (logprobs.sum() + values.sum()).backward()
    for name, weight in made.named_parameters():
        if "lora" in name or "value_head" in name:
            assert weight.grad is not None and weight.grad.abs().sum() > 0, name
        else:
            assert weight.grad is None and not weight.requires_grad, name


def test_policy_and_critic_do_not_share_a_gradient():
    made = build("adapter")
    made(BATCH)[1].sum().backward()
    touched = {
        name
        for name, weight in made.named_parameters()
        if weight.grad is not None and weight.grad.any()
    }
    assert touched
    for name in touched:
        assert f".{CRITIC}." in name or "value_head" in name


@pytest.mark.parametrize("critic", ["model", "adapter", "head"])
def test_activations_computed_twice_give_the_same_gradients(critic):
    grads = []
    for twice in (False, True):
        made = build(critic).train()
        if twice:
            made.activation_checkpointing_enable()
        # Two passes, so that the second begins where the backward of the first has left the
        # adapters.
        for _ in range(2):
            logprobs, values = made(BATCH)
            (logprobs * torch.arange(1.0, 6.0) + values.square()).sum().backward()
        made.restore_policy_adapter()
        grads.append({name: p.grad for name, p in made.named_parameters() if p.requires_grad})
    for name, gradient in grads[0].items():
        assert torch.allclose(gradient, grads[1][name], atol=1e-5), name


def test_layers_are_computed_twice_where_that_was_asked():
    kept_inputs = []
    for layers in ({}, {"every_n_layers": 2}):
        made = build("model").train()
        made.activation_checkpointing_enable({}, **layers)
        calls = []
        for model in (made.policy, made.value_model):
            for layer in model.base_model.layers:
                layer.self_attn.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        logprobs, values = made(BATCH)
        (logprobs.sum() + values.sum()).backward()
        kept_inputs.append(len(calls))
    assert kept_inputs == [8, 6]  # four layers, each or every second twice


# --- The start ----------------------------------------------------------------------------------


def test_a_critic_from_the_policy_has_its_backbone_and_says_zero():
    policy = letter_model("gpt_neox")
    critic = build_critic_model(policy, None)
    made = ActorCritic(policy, "model", critic)
    assert torch.equal(
        critic.base_model(IDS).last_hidden_state, policy.base_model(IDS).last_hidden_state
    )
    assert made.values(BATCH).tolist() == [0.0] * 5
    for weight in critic.parameters():
        assert weight.requires_grad
    shared = {weight.data_ptr() for weight in policy.parameters()} & {
        w.data_ptr() for w in critic.parameters()
    }
    assert not shared


@pytest.mark.parametrize("kind", ["granite", "cohere", "olmoe", "bert", "llama4_text"])
def test_a_critic_needs_no_classifier_of_its_architecture(tmp_path, kind):
    """Covers an architecture without a classifier, one whose classifier reads other states, and a
    hidden backbone.
    """
    changes = {"olmoe": {"num_experts": 4, "num_experts_per_tok": 2}, "bert": {"is_decoder": True}}
    policy = letter_model(kind, **changes.get(kind, {}))
    critic = build_critic_model(policy, None)
    made = ActorCritic(policy, "model", critic)
    assert made.values(BATCH).tolist() == [0.0] * 5
    for weight in critic.parameters():
        assert weight.requires_grad
    assert not {w.data_ptr() for w in policy.parameters()} & {
        w.data_ptr() for w in critic.parameters()
    }
    critic.score.weight.data.normal_(generator=torch.Generator().manual_seed(0))
    made.save_value(tmp_path)
    assert find_missing(critic, tmp_path) == []
    head = load_file(tmp_path / "value_head.safetensors")
    states = AutoModel.from_pretrained(tmp_path)(IDS).last_hidden_state.flatten(0, 1)[POSITIONS]
    expected = states @ head["score.weight"][0] + head["score.bias"]
    assert torch.allclose(made.values(BATCH), expected, atol=1e-5)
    assert expected.std() > 0.01


def test_a_critic_model_beside_an_adapter_has_the_adapted_backbone():
    policy = letter_policy()
    critic = build_critic_model(policy, None)
    expected = policy.get_base_model().base_model(IDS).last_hidden_state
    assert torch.allclose(critic.base_model(IDS).last_hidden_state, expected, atol=1e-5)
    for name, _ in critic.named_parameters():
        assert "lora" not in name


def test_a_critic_of_a_half_precision_policy_keeps_the_angles_of_positions_in_float32():
    policy = letter_model().bfloat16()
    policy.model.rotary_emb.inv_freq = policy.model.rotary_emb.inv_freq.float()
    critic = build_critic_model(policy, None)
    angles = [buffer for name, buffer in critic.named_buffers() if name.endswith("inv_freq")]
    assert angles
    for buffer in angles:
        assert buffer.dtype == torch.float32
    assert {weight.dtype for weight in critic.parameters()} == {torch.bfloat16}


def test_a_critic_from_the_reward_model_gives_its_scores():
    judge = letter_model(labels=1, seed=3).requires_grad_(False)
    critic = build_critic_model(letter_model(), judge.half())
    assert critic.dtype == torch.float32  # trained as the policy is
    for weight in critic.parameters():
        assert weight.requires_grad
    for weight in judge.parameters():
        assert not weight.requires_grad
    made = ActorCritic(letter_model(), "model", critic)
    states = judge.float().base_model(IDS).last_hidden_state.flatten(0, 1)[POSITIONS]
    assert torch.allclose(made.values(BATCH), judge.score(states)[:, 0], atol=1e-4)


def test_a_critic_from_an_adapted_reward_model_is_one_plain_model(tmp_path):
    judge = get_peft_model(
        letter_model(labels=1), lora(task_type="SEQ_CLS", init_lora_weights=False)
    )
    critic = build_critic_model(letter_model(), judge)
    expected = judge.get_base_model().score(
        judge.get_base_model().base_model(IDS).last_hidden_state
    )
    critic.save_pretrained(tmp_path)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert torch.allclose(
        loaded.score(loaded.base_model(IDS).last_hidden_state), expected, atol=1e-5
    )


def test_the_start_of_a_model_with_an_adapter_is_kept():
    policy = letter_policy()
    trainable = {name for name, weight in policy.named_parameters() if weight.requires_grad}
    before = plain_logprobs(policy)
    assert build_reference(policy, adapted_later=False) is None
    assert {name for name, weight in policy.named_parameters() if weight.requires_grad} == trainable
    made = ActorCritic(policy, "adapter")
    for name, weight in policy.named_parameters():
        if ".default." in name:
            weight.data.add_(0.1)
    with torch.no_grad():
        reference = made.reference_logprobs(BATCH, 1.0)
    assert torch.allclose(reference, before, atol=1e-5)
    assert not torch.allclose(plain_logprobs(policy), before, atol=1e-2)
    assert not any(REFERENCE in name for name in made.state_dict())


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("gpt2", {"resid_pdrop": 0.5, "embd_pdrop": 0.5, "attn_pdrop": 0.5}),
        ("gpt_neox", {"hidden_dropout": 0.5, "attention_dropout": 0.5}),
        ("opt", {"dropout": 0.5, "attention_dropout": 0.5}),
        ("llama", {"attention_dropout": 0.5}),
    ],
)
def test_dropout_is_off_in_every_form(kind, changes):
    model = letter_model(kind, **changes).train()
    policy = get_peft_model(model, lora(lora_dropout=0.5, fan_in_fan_out=kind == "gpt2")).train()
    assert not torch.equal(policy(IDS).logits, policy(IDS).logits)
    disable_dropout(policy)
    assert torch.equal(policy(IDS).logits, policy(IDS).logits)
    name, value = next(iter(changes.items()))
    assert getattr(model.config, name) == value  # what is saved stays the model's own


# --- Saving -------------------------------------------------------------------------------------


@pytest.mark.parametrize("critic", ["model", "adapter", "head"])
def test_the_state_holds_what_trains_once_and_restores_it(critic):
    made = build(critic)
    restored = build(critic)
    state = {name: weight.clone() for name, weight in made.state_dict().items()}
    assert set(state) == {name for name, weight in made.named_parameters() if weight.requires_grad}
    for weight in restored.parameters():
        weight.data.add_(weight.requires_grad * 1.0)
    restored.load_state_dict(state)
    for expected, two in zip(made(BATCH), restored(BATCH), strict=True):
        assert torch.equal(expected, two)


def test_weights_that_others_take_the_place_of_are_still_trained_and_saved():
    made = build("adapter")
    trained = set(made.state_dict())
    for module in made.modules():  # as FSDP2 does
        for name, weight in [*module.named_parameters(recurse=False)]:
            setattr(module, name, torch.nn.Parameter(weight.detach().clone(), weight.requires_grad))
    with made.adapter(CRITIC):
        assert set(made.state_dict()) == trained
    assert set(made.state_dict()) == trained


def test_a_state_of_another_kind_is_refused():
    with pytest.raises(ValueError, match="another policy and critic"):
        build("head").load_state_dict(build("model").state_dict(), strict=False)


def test_a_tied_embedding_is_saved_once_and_stays_tied():
    made = ActorCritic(letter_model(tie_word_embeddings=True), "head")
    state = {name: weight + 1 for name, weight in made.state_dict().items()}
    made.load_state_dict(state)
    assert "policy.lm_head.weight" not in state
    assert made.policy.lm_head.weight.data_ptr() == made.policy.model.embed_tokens.weight.data_ptr()


@pytest.mark.parametrize("kind", ["llama", "gpt_neox"])
def test_a_critic_model_loads_elsewhere(tmp_path, kind):
    made = ActorCritic(letter_model(kind), "model", letter_model(kind, labels=1, seed=3))
    made.save_value(tmp_path)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    again = ActorCritic(letter_model(kind), "model", loaded)
    assert torch.equal(again.values(BATCH), made.values(BATCH))


@pytest.mark.parametrize("critic", ["adapter", "head"])
def test_a_head_and_its_adapter_load_elsewhere(tmp_path, critic):
    made = build(critic)
    made.save_value(tmp_path)
    head = load_file(tmp_path / "value_head.safetensors")
    model = letter_model() if critic == "adapter" else made.policy
    if critic == "adapter":
        model = PeftModel.from_pretrained(model, tmp_path / CRITIC).get_base_model()
    states = model.base_model(IDS).last_hidden_state.flatten(0, 1)[POSITIONS]
    values = states @ head["score.weight"][0] + head["score.bias"]
    assert torch.allclose(values, made.values(BATCH), atol=1e-5)


def test_the_policys_adapter_is_put_back_after_an_error():
    policy = letter_policy()
    with (
        pytest.raises(RuntimeError, match="inside"),
        ActorCritic(policy, "head").adapter(NO_ADAPTER),
    ):
        raise RuntimeError("inside")
    assert torch.allclose(plain_logprobs(policy), plain_logprobs(letter_policy()))

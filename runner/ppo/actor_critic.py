"""Policy and critic as one module, which PPO wraps, optimises and saves as a whole.

Where possible they share a backbone. Each process holds whole models, or FSDP2 has sharded them.
Then each pass gathers what it needs, so that all processes must take the same number of passes
(``Rollout.micro_batches``); but to sample, and to read with reference and reward models, each
process has them whole (``generate.sampler.whole``). DeepSpeed is refused.

Letters at the end of a tensor's name are its shape: N response tokens of all rows, H hidden.
"""

import contextlib
import copy
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method
from transformers import PreTrainedConfig, PreTrainedModel, Trainer

from runner.errors import ConfigError, Fault
from runner.generate.sampler import Model, evaluating
from runner.model.padding_free import make_padding_free
from runner.ppo.batching import MicroBatch
from runner.ppo.critic import Critic, build_critic_model, part_of, write_value_head, zero_head
from runner.ppo.last_layer import leave_out_unread
from runner.ppo.preparation import as_list
from runner.ppo.token_logprobs import TokenLogProbs, hidden_states
from runner.reward.reading import score_states

CRITIC = "critic"
REFERENCE = "reference"
NO_ADAPTER = ""


class ActorCritic(nn.Module):
    """Log-probabilities of the policy and values of the critic for tokens of a micro-batch.

    The critic is a ``model`` of its own with one label, a second ``adapter`` on the policy's
    backbone with a linear head, or only a linear ``head`` on the policy's hidden states.
    ``state_dict`` holds what training changes, each weight once, so that a checkpoint of an adapter
    stays as small as the adapter.
    """

    def __init__(self, policy: Model, critic: str, value_model: Critic | None = None):
        super().__init__()
        self.policy = policy
        self.critic = critic
        self.value_model = value_model
        if critic != "model":
            self.value_head = zero_head(policy)
        self.policy_adapter = policy.active_adapter if isinstance(policy, PeftModel) else NO_ADAPTER
        self.critic_adapter = CRITIC if critic == "adapter" else self.policy_adapter
        self.active_adapter = self.policy_adapter
        self.trainable_weights = _find_trainable_weights(policy)
        if critic == "adapter":
            policy.add_adapter(CRITIC, copy.deepcopy(policy.peft_config[self.policy_adapter]))
            self._use(CRITIC)
            self.trainable_weights = _find_trainable_weights(policy)
            self._use(self.policy_adapter)
        self.backbone = TokenLogProbs(policy)
        # The layers that FSDP2 gathers one at a time, as transformers names them.
        layers = set(policy._no_split_modules or ())
        if value_model is not None:
            layers.update(value_model.base_model._no_split_modules or ())
        self._no_split_modules = sorted(layers)

    def register_for_shards(self) -> None:
        """Have each pass but ``forward`` gather what FSDP2 has sharded, if it has."""
        if isinstance(self, FSDPModule) and "values" not in vars(self):
            for name in ("logprobs", "reference_logprobs", "values"):
                register_fsdp_forward_method(self, name)

    def make_padding_free(
        self, reference: TokenLogProbs | None, leaves_out_unread: bool = True
    ) -> bool:
        """Have policy, critic and reference take rows that lie end to end, if all can.

        Their last layers then leave out what nothing reads, if ``leaves_out_unread``.
        """
        models = [self.backbone]
        if reference is not None:
            models.append(reference)
        trunks = [model.trunk for model in models]
        if self.value_model is not None:
            trunks.append(self.value_model.base_model)
        if not all(model.is_plain for model in models):
            return False
        for trunk in trunks:
            with evaluating(trunk):
                if not make_padding_free(trunk):
                    return False
        if leaves_out_unread:
            for trunk in trunks:
                leave_out_unread(trunk)
        return True

    @property
    def start_adapter(self) -> str:
        """The adapter under which the backbone is the start model."""
        return REFERENCE if REFERENCE in self.policy.peft_config else NO_ADAPTER

    @property
    def config(self) -> PreTrainedConfig:
        return self.policy.config

    @property
    def device(self) -> torch.device:
        return self.policy.device

    # --- Passes

    def forward(self, batch: MicroBatch, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
        """Log-probabilities of the targets, and values of the states before them, float32 [N]."""
        if self.critic == "head" and self.backbone.is_plain:
            hidden_NH = hidden_states(self.backbone.trunk, batch)
            values_N = score_states(self.value_head, hidden_NH)
            return self.backbone.of_hidden(hidden_NH, batch.targets_N, temperature), values_N
        values_N = self.values(batch)
        return self.logprobs(batch, temperature), values_N

    def logprobs(self, batch: MicroBatch, temperature: float) -> Tensor:
        """Log-probabilities of the policy, float32 [N]."""
        with self.adapter(self.policy_adapter):
            return self.backbone(batch, temperature)

    def reference_logprobs(self, batch: MicroBatch, temperature: float) -> Tensor:
        """Log-probabilities of the start model, float32 [N]; its backbone is the policy's."""
        with self.adapter(self.start_adapter):
            return self.backbone(batch, temperature)

    def values(self, batch: MicroBatch) -> Tensor:
        """The critic's values of the states before the targets, float32 [N]."""
        if self.value_model is not None:
            hidden_NH = hidden_states(self.value_model.base_model, batch)
            return score_states(self.value_model.score, hidden_NH)
        with self.adapter(self.critic_adapter):
            hidden_NH = hidden_states(self.backbone.trunk, batch)
            return score_states(self.value_head, hidden_NH)

    # --- The active adapter

    @contextlib.contextmanager
    def adapter(self, name: str) -> Iterator[None]:
        """Run the backbone inside under this adapter, or under none; then under the one before."""
        before = self.active_adapter
        self._use(name)
        try:
            yield
        finally:
            self._use(before)

    def restore_policy_adapter(self) -> None:
        """Activate the policy's adapter, where a pass or a recomputed layer has left another."""
        self._use(self.policy_adapter)

    def _use(self, adapter: str) -> None:
        """Change the active adapter; peft freezes the others, which must stay trainable."""
        if adapter == self.active_adapter:
            return
        if adapter == NO_ADAPTER:
            self.policy.base_model.disable_adapter_layers()
        else:
            self.policy.base_model.enable_adapter_layers()
            self.policy.set_adapter(adapter)
        self.active_adapter = adapter
        for module, name in self.trainable_weights:
            getattr(module, name).requires_grad_(True)

    def activation_checkpointing_enable(
        self, activation_checkpointing_kwargs: dict[str, Any] | None = None, **layers: object
    ) -> None:
        """Recompute activations in the backward pass, each layer under the adapter it ran under."""
        kwargs = dict(activation_checkpointing_kwargs or {}) | {"use_reentrant": False}
        if self.value_model is not None:
            self.value_model.base_model.activation_checkpointing_enable(dict(kwargs), **layers)
        if isinstance(self.policy, PeftModel):
            kwargs["context_fn"] = self._checkpoint_contexts
        self.policy.activation_checkpointing_enable(kwargs, **layers)

    def _checkpoint_contexts(
        self,
    ) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """The contexts of the forward pass of a layer and of its recomputation."""
        return contextlib.nullcontext(), self._recompute_context(self.active_adapter)

    @contextlib.contextmanager
    def _recompute_context(self, adapter: str) -> Iterator[None]:
        """Leave the adapter active after it: to switch back for each layer would cost more."""
        self._use(adapter)
        yield

    # --- Weights

    def state_dict(self, *args: object, **kwargs: object) -> dict[str, Tensor]:
        """The weights that are trained, in the same order in all processes."""
        trained = self._trained_names()
        weights = super().state_dict(*args, **kwargs)
        return {name: weight for name, weight in weights.items() if name in trained}

    def load_state_dict(
        self, state_dict: Mapping[str, Tensor], strict: bool = True, assign: bool = False
    ) -> object:
        """Load the weights that are trained; ValueError for those of another policy and critic."""
        trained = self._trained_names()
        if set(state_dict) != trained:
            missing = sorted(trained - set(state_dict))
            unknown = sorted(set(state_dict) - trained)
            raise ValueError(
                "the checkpoint belongs to another policy and critic: "
                f"lacks {missing[:3]}, has {unknown[:3]}"
            )
        result = super().load_state_dict(state_dict, strict=False, assign=assign)
        result.missing_keys.clear()  # what is frozen was loaded with the model
        return result

    def _trained_names(self) -> set[str]:
        return {name for name, parameter in self.named_parameters() if parameter.requires_grad}

    def drop_policy_gradient(self) -> None:
        """Leave only the gradient of the critic's own weights."""
        for name, parameter in self.policy.named_parameters():
            if f".{CRITIC}." not in f"{name}.":
                parameter.grad = None

    def save_policy(self, folder: Path, weights: Mapping[str, Tensor] | None = None) -> None:
        """Write the policy, or its adapter alone, as ``from_pretrained`` loads it.

        ``weights`` are those that were gathered from shards.
        """
        policy_weights = part_of(weights, "policy")
        if not isinstance(self.policy, PeftModel):
            if policy_weights:
                tied = self.policy.all_tied_weights_keys
                policy_weights = {
                    name: weight for name, weight in policy_weights.items() if name not in tied
                }
            self.policy.save_pretrained(folder, state_dict=policy_weights)
            return
        self.policy.save_pretrained(
            folder, selected_adapters=[self.policy_adapter], state_dict=policy_weights
        )
        # peft puts an adapter that is not called default into a folder of its name.
        inner = folder / self.policy_adapter
        for path in inner.glob("*"):
            path.rename(folder / path.name)
        if inner.exists():
            inner.rmdir()

    def save_value(self, folder: Path, weights: Mapping[str, Tensor] | None = None) -> None:
        """Write the critic as others load it: a classifier, or a head with its adapter."""
        if self.value_model is not None:
            self.value_model.save_pretrained(folder, state_dict=part_of(weights, "value_model"))
            return
        if self.critic == "adapter":
            self.policy.save_pretrained(
                folder, selected_adapters=[CRITIC], state_dict=part_of(weights, "policy")
            )
        head = part_of(weights, "value_head") or self.value_head.state_dict()
        write_value_head(head, folder)


def _find_trainable_weights(policy: Model) -> list[tuple[nn.Module, str]]:
    """The module and the attribute of each weight that is trained.

    The weights themselves would not do, because FSDP2 puts others into the same attributes.
    """
    weights = []
    for module in policy.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad:
                weights.append((module, name))
    return weights


# --- How they are built


def build_actor_critic(
    policy: Model,
    critic: str,
    value_model: PreTrainedModel | None,
    reward_model: PreTrainedModel | PeftModel | None,
) -> ActorCritic:
    """Policy and critic without dropout; raises ConfigError for a critic that cannot be."""
    has_adapter = isinstance(policy, PeftModel)
    if value_model is not None:
        critic = "model"
    elif critic == "auto":
        critic = "adapter" if has_adapter else "model"
    _check_critic(policy, critic, value_model)
    if value_model is not None:
        value_model.requires_grad_(True)
    elif critic == "model":
        value_model = build_critic_model(policy, reward_model)
    actor_critic = ActorCritic(policy, critic, value_model)
    disable_dropout(actor_critic)
    return actor_critic


def _check_critic(policy: Model, critic: str, value_model: object) -> None:
    """Raise ConfigError for a kind of critic that this policy cannot have.

    An adapter beside another needs one; a copy of a quantised model could not be trained.
    """
    has_adapter = isinstance(policy, PeftModel)
    if critic == "adapter" and not has_adapter:
        raise ConfigError(
            Fault(
                where="trainer.args.critic",
                found="adapter, with a policy that has no adapter",
                expected="model or head",
                fix="peft=lora",
            )
        )
    if has_adapter and policy.active_peft_config.is_prompt_learning:
        kind = policy.active_peft_config.peft_type.value
        raise ConfigError(
            Fault(
                where="peft",
                found=f"{kind} puts a learnt prompt before the tokens",
                expected="an adapter inside the layers",
                fix="=lora",
            )
        )
    if value_model is not None and not isinstance(value_model, nn.Module):
        raise ConfigError(
            Fault(
                where="trainer.value_model",
                found=f"{value_model}, which is not a model",
                expected="a _target_ that returns one, and its arguments",
                fix="trainer.value_model._target_=runner.reward.outcome.load_reward_model "
                "trainer.value_model.path=<model folder>",
            )
        )
    needs_copy = critic == "model" and value_model is None
    if needs_copy and getattr(policy, "is_quantized", False):
        raise ConfigError(
            Fault(
                where="trainer.args.critic",
                found="a separate model, with a quantised policy",
                expected="an adapter",
                fix="=adapter",
            )
        )


def build_reference(policy: Model, *, adapted_later: bool) -> PreTrainedModel | None:
    """A frozen copy of the start model; None where the policy's backbone can stand for it.

    That it can without its adapter, or under a copy, made here, of the adapter that it came with.
    """
    if not isinstance(policy, PeftModel):
        return None if adapted_later else copy.deepcopy(policy)
    adapter = policy.active_adapter
    trained = {id(parameter) for parameter in policy.parameters() if parameter.requires_grad}
    policy.add_adapter(REFERENCE, copy.deepcopy(policy.peft_config[adapter]))
    weights = dict(policy.named_parameters())
    with torch.no_grad():
        for name, weight in weights.items():
            # The adapter's name is the end of the weight's where rows of tokens are trained.
            if f".{REFERENCE}." in f"{name}.":
                source = re.sub(rf"\.{REFERENCE}\b", f".{adapter}", name)
                weight.copy_(weights[source])
    policy.set_adapter(adapter)
    for parameter in policy.parameters():
        parameter.requires_grad_(id(parameter) in trained)
    return None


def disable_dropout(model: nn.Module) -> None:
    """Set every dropout to zero, so that the first mini-batch's ratio is 1 (Huang et al. 2022)."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if "drop" in name and isinstance(value, float):  # what a layer hands to a function
                setattr(module, name, 0.0)


def store_as_autocast(model: nn.Module, dtype: torch.dtype) -> None:
    """Store frozen float32 weights of linear layers in the type that autocast casts them to.

    It would do so again in each pass; bits are the same. A weight that another layer reads too,
    such as a tied head, stays as it is, and so do embeddings and norms, which autocast reads in
    float32.
    """
    readers: Counter[int] = Counter()
    for module in model.modules():
        readers.update(id(weight) for weight in module.parameters(recurse=False))

    def can_be_cast(weight: nn.Parameter) -> bool:
        is_frozen = weight.dtype == torch.float32 and not weight.requires_grad
        return is_frozen and readers[id(weight)] == 1

    # In a pass without autocast all other layers stay float32, so that these cast to and fro.
    def cast_input(layer: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor]:
        return (args[0].to(layer.weight.dtype),)

    def cast_output(layer: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if torch.is_autocast_enabled(output.device.type):
            return output
        return output.float()

    for layer in model.modules():
        if type(layer) is not nn.Linear:
            continue
        weights = list(layer.parameters(recurse=False))
        if weights and all(can_be_cast(weight) for weight in weights):
            layer.to(dtype)
            layer.register_forward_pre_hook(cast_input)
            layer.register_forward_hook(cast_output)


def place_frozen(trainer: Trainer) -> TokenLogProbs | None:
    """Put reward models and the reference where the policy is, in the types of their passes.

    The PPOTrainer is read only where it is public.
    Returns the log-probabilities of a reference that is a model of its own.
    """
    args = trainer.args
    reward_models = trainer.rewards.models
    references = as_list(trainer.reference)
    for model in [*reward_models, *references]:
        model.requires_grad_(False).eval()
        if not getattr(model, "is_quantized", False):
            model.to(args.device)
    # Before the weights change: it tries a pass without autocast.
    ref_logprobs = TokenLogProbs(references[0]) if references else None
    if args.device.type == "cuda" and args.bf16 and not trainer.is_fsdp_enabled:
        scorers = [model.base_model for model in reward_models if hasattr(model, "score")]
        for model in [trainer.actor_critic.policy, *references, *scorers]:
            store_as_autocast(model, torch.bfloat16)
    return ref_logprobs

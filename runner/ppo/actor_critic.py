"""Policy and critic as one module: what PPO wraps, optimises and saves together, on one backbone where possible.

Each process holds whole models, or FSDP2 has sharded them. Then a pass gathers what it needs, so that all processes
take as many (``Rollout.micro_batches``); while it samples, and while reference and reward models read, each has them
whole (``generate.sampler.whole``). DeepSpeed is refused.

Letters at the end of a tensor's name are its shape: B rows, T tokens, N response tokens of all rows, H hidden, V
vocabulary.
"""

import contextlib
import copy
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
from peft import PeftModel
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForSequenceClassification, PreTrainedConfig, PreTrainedModel
from transformers.models.auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING

from runner.errors import ConfigError, Fault, fault
from runner.generate.sampler import Model, evaluating
from runner.model.reference import copy_reference
from runner.ppo.batching import MicroBatch
from runner.ppo.padding_free import equal_to_rounding, make_padding_free, to_line_arguments
from runner.reward.reading import last_hidden_states, score_states

CRITIC = "critic"
REFERENCE = "reference"
NO_ADAPTER = ""
LOGITS_PER_CHUNK = {"cpu": 1 << 22}  # elements held at once: 16 MiB of float32
LOGITS_PER_CHUNK_ELSEWHERE = 1 << 26


def find_backbone(model: PreTrainedModel) -> PreTrainedModel:
    """The model without its head, also where it is not under the name that its class says, as in Llama 4."""
    parts = (part for part in model.children() if isinstance(part, PreTrainedModel))
    return next(parts, model) if model.base_model is model else model.base_model


def hidden_states(trunk: nn.Module, batch: MicroBatch) -> Tensor:
    """Those before the targets of a batch; causal attention, which looks back, needs no mask for it."""
    line = to_line_arguments(batch.row_lengths, batch.input_ids_BT.device) if batch.row_lengths else {}
    return last_hidden_states(trunk, batch.input_ids_BT, batch.positions_N, **line)


class TokenLogProbs:
    """Log-probabilities that a causal language model gives to tokens that are already there.

    Hidden states become logits only where a token was sampled, a chunk at a time, and the backward pass makes them
    again: with 50,000 words the logits of a micro-batch would take more memory than everything else together.
    """

    def __init__(self, model: Model):
        self.model = model.get_base_model() if isinstance(model, PeftModel) else model
        self.trunk = find_backbone(self.model)
        self.head = self.model.get_output_embeddings()
        self.is_plain = self._is_plain()

    def __call__(self, batch: MicroBatch, temperature: float) -> Tensor:
        """float32 log-probabilities [N] of the targets, each seen from the position before it."""
        if self.is_plain:
            return self.of_hidden(hidden_states(self.trunk, batch), batch.targets_N, temperature)
        logits_BTV = self.model(input_ids=batch.input_ids_BT, use_cache=False).logits
        return _gather(logits_BTV.flatten(0, 1)[batch.positions_N], batch.targets_N, temperature)

    def of_hidden(self, hidden_NH: Tensor, targets_N: Tensor, temperature: float) -> Tensor:
        """float32 log-probabilities of the targets under softmax(logits / temperature)."""
        elements = LOGITS_PER_CHUNK.get(hidden_NH.device.type, LOGITS_PER_CHUNK_ELSEWHERE)
        rows = max(1, elements // self.head.weight.shape[0])
        if len(hidden_NH) <= rows or not torch.is_grad_enabled():
            compute = self._of_chunk
        else:  # forgotten after the forward pass and computed again in the backward pass
            compute = partial(checkpoint, self._of_chunk, use_reentrant=False, preserve_rng_state=False)
        pairs = zip(hidden_NH.split(rows), targets_N.split(rows), strict=True)
        return torch.cat([compute(hidden, targets, temperature) for hidden, targets in pairs])

    def _of_chunk(self, hidden_NH: Tensor, targets_N: Tensor, temperature: float) -> Tensor:
        return _gather(self.head(hidden_NH), targets_N, temperature)

    @torch.no_grad()
    def _is_plain(self) -> bool:
        """True where the logits are just the head of the last hidden states, without a cap or a scale on them.

        The logits are compared with what the head gave in the same pass, because kernels for another number of rows may
        round in another way; the states with those of a pass without the head, up to rounding.
        """
        ids_BT, seen = torch.arange(4, device=self.model.device)[None], []
        hook = self.head.register_forward_hook(lambda _, taken, logits: seen.append((taken[0], logits)))
        with evaluating(self.model):
            logits = self.model(input_ids=ids_BT, use_cache=False).logits
            hook.remove()
            states = self.trunk(input_ids=ids_BT, use_cache=False).last_hidden_state
        return bool(seen) and equal_to_rounding(states, seen[0][0]) and torch.equal(logits.float(), seen[0][1].float())


def _gather(logits_NV: Tensor, targets_N: Tensor, temperature: float) -> Tensor:
    logits_NV = logits_NV.float()
    return -cross_entropy(logits_NV / temperature if temperature != 1 else logits_NV, targets_N, reduction="none")


def store_as_autocast(model: nn.Module, dtype: torch.dtype) -> None:
    """Keep frozen float32 weights of linear layers in the type that autocast casts them to, again in each pass.

    Bits are the same. A weight that another layer reads too, such as a tied head, stays as it is, and so do embeddings
    and norms, which autocast reads in float32.
    """
    readers = Counter(id(weight) for each in model.modules() for weight in each.parameters(recurse=False))
    for layer in model.modules():
        own = list(layer.parameters(recurse=False)) if type(layer) is nn.Linear else []
        fit = [each.dtype == torch.float32 and not each.requires_grad and readers[id(each)] == 1 for each in own]
        if own and all(fit):
            layer.to(dtype)
            # For passes without autocast, in which all others stay float32.
            layer.register_forward_pre_hook(lambda layer, args: (args[0].to(layer.weight.dtype),))
            layer.register_forward_hook(lambda _, args, x: x if torch.is_autocast_enabled(x.device.type) else x.float())


class ValueModel(nn.Module):
    """A backbone with a value for each state, where transformers has no classifier of the architecture."""

    def __init__(self, base_model: PreTrainedModel, score: nn.Linear):
        super().__init__()
        self.base_model, self.score = base_model, score

    def save_pretrained(self, folder: Path, state_dict: Mapping[str, Tensor] | None = None) -> None:
        """Write the backbone as AutoModel loads it, and the head beside it."""
        self.base_model.save_pretrained(folder, state_dict=part_of(state_dict, "base_model"))
        _write_head(part_of(state_dict, "score") or self.score.state_dict(), folder)


Critic: TypeAlias = PreTrainedModel | ValueModel


class ActorCritic(nn.Module):
    """Log-probabilities of the policy and values of the critic for the response tokens of a micro-batch.

    The critic is a ``model`` of its own with one label, a second ``adapter`` on the policy's backbone with a linear
    head, or only a linear ``head`` on the policy's hidden states. ``state_dict`` holds what training changes, each
    weight once, so that a checkpoint of an adapter stays as small as the adapter.
    """

    def __init__(self, policy: Model, critic: str, value_model: Critic | None = None):
        super().__init__()
        self.policy, self.critic, self.value_model = policy, critic, value_model
        if critic != "model":
            self.value_head = _zero_head(policy)
        self.policy_adapter = policy.active_adapter if isinstance(policy, PeftModel) else NO_ADAPTER
        self.critic_adapter = CRITIC if critic == "adapter" else self.policy_adapter
        self.active_adapter = self.policy_adapter
        self.trainable_places = _find_trainable_places(policy)
        if critic == "adapter":
            policy.add_adapter(CRITIC, copy.deepcopy(policy.peft_config[self.policy_adapter]))
            self._use(CRITIC)
            self.trainable_places = _find_trainable_places(policy)
            self._use(self.policy_adapter)
        self.backbone = TokenLogProbs(policy)
        models = [policy, *([] if value_model is None else [value_model.base_model])]
        # The layers that FSDP2 gathers one at a time, as transformers names them.
        self._no_split_modules = sorted({name for each in models for name in each._no_split_modules or ()})

    def register_for_shards(self) -> None:
        """Have each pass but ``forward`` gather what FSDP2 has sharded; nothing to do where it has not."""
        if isinstance(self, FSDPModule) and "values" not in vars(self):
            for name in ("logprobs", "reference_logprobs", "values"):
                register_fsdp_forward_method(self, name)

    def make_padding_free(self, reference: TokenLogProbs | None) -> bool:
        """Have policy, critic and reference take rows that lie end to end, if all can."""
        models = [self.backbone, *([reference] if reference else [])]
        trunks = [model.trunk for model in models]
        trunks += [] if self.value_model is None else [self.value_model.base_model]
        return all(model.is_plain for model in models) and all(map(make_padding_free, trunks))

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
        """Those of the start model: the backbone without the adapter, or with that of the start."""
        with self.adapter(self.start_adapter):
            return self.backbone(batch, temperature)

    def values(self, batch: MicroBatch) -> Tensor:
        """The critic's values of the states before the targets, float32 [N]."""
        if self.value_model is not None:
            return score_states(self.value_model.score, hidden_states(self.value_model.base_model, batch))
        with self.adapter(self.critic_adapter):
            return score_states(self.value_head, hidden_states(self.backbone.trunk, batch))

    @contextlib.contextmanager
    def adapter(self, name: str) -> Iterator[None]:
        """Within it the backbone runs under this adapter, or under none; after it under the one of before."""
        before = self.active_adapter
        self._use(name)
        try:
            yield
        finally:
            self._use(before)

    def restore_policy_adapter(self) -> None:
        """Put the policy's own adapter on again, where another pass or a recomputed layer has left another."""
        self._use(self.policy_adapter)

    def _use(self, adapter: str) -> None:
        """Change the active adapter; others, which peft freezes, stay trainable, or the critic would stand still."""
        if adapter == self.active_adapter:
            return
        if adapter == NO_ADAPTER:
            self.policy.base_model.disable_adapter_layers()
        else:
            self.policy.base_model.enable_adapter_layers()
            self.policy.set_adapter(adapter)
        self.active_adapter = adapter
        for module, name in self.trainable_places:
            getattr(module, name).requires_grad_(True)

    def activation_checkpointing_enable(
        self, activation_checkpointing_kwargs: dict[str, Any] | None = None, **layers: Any
    ) -> None:
        """Recompute activations in the backward pass, each layer under the adapter that it ran under."""
        kwargs = dict(activation_checkpointing_kwargs or {}) | {"use_reentrant": False}
        if self.value_model is not None:
            self.value_model.base_model.activation_checkpointing_enable(dict(kwargs), **layers)
        if isinstance(self.policy, PeftModel):
            kwargs["context_fn"] = lambda: (contextlib.nullcontext(), self._recompute_context(self.active_adapter))
        self.policy.activation_checkpointing_enable(kwargs, **layers)

    @contextlib.contextmanager
    def _recompute_context(self, adapter: str) -> Iterator[None]:
        """The adapter of a recomputed layer, and of those that follow: to switch back at each would cost more."""
        self._use(adapter)
        yield

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        whole = super().state_dict(*args, **kwargs)
        trained = self._trained()
        return {name: weight for name, weight in whole.items() if name in trained}  # in one order in all processes

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        trained = self._trained()
        if set(state_dict) != trained:
            missing, unknown = sorted(trained - set(state_dict)), sorted(set(state_dict) - trained)
            raise ValueError(f"the checkpoint is of another policy and critic: lacks {missing[:3]}, has {unknown[:3]}")
        result = super().load_state_dict(state_dict, strict=False, assign=assign)
        result.missing_keys.clear()  # what is frozen was loaded with the model
        return result

    def _trained(self) -> set[str]:
        return {name for name, parameter in self.named_parameters() if parameter.requires_grad}

    def drop_policy_gradient(self) -> None:
        """Leave only the gradient of the critic's own weights."""
        for name, parameter in self.policy.named_parameters():
            if f".{CRITIC}." not in f"{name}.":
                parameter.grad = None

    def save_policy(self, folder: Path, weights: Mapping[str, Tensor] | None = None) -> None:
        """Write the policy, or its adapter alone, as ``from_pretrained`` loads it; ``weights`` are gathered ones."""
        own = part_of(weights, "policy")
        if not isinstance(self.policy, PeftModel):
            tied = self.policy.all_tied_weights_keys
            once = own and {name: weight for name, weight in own.items() if name not in tied}
            self.policy.save_pretrained(folder, state_dict=once)
            return
        self.policy.save_pretrained(folder, selected_adapters=[self.policy_adapter], state_dict=own)
        inner = folder / self.policy_adapter  # where peft puts an adapter that is not called default
        for path in inner.glob("*"):
            path.rename(folder / path.name)
        if inner.exists():
            inner.rmdir()

    def save_value(self, folder: Path, weights: Mapping[str, Tensor] | None = None) -> None:
        """Write the critic so that it loads elsewhere: a classification model, or a head and perhaps its adapter."""
        if self.value_model is not None:
            self.value_model.save_pretrained(folder, state_dict=part_of(weights, "value_model"))
            return
        if self.critic == "adapter":
            self.policy.save_pretrained(folder, selected_adapters=[CRITIC], state_dict=part_of(weights, "policy"))
        _write_head(part_of(weights, "value_head") or self.value_head.state_dict(), folder)


def _find_trainable_places(policy: Model) -> list[tuple[nn.Module, str]]:
    """The module and the name in it of each weight that is trained; FSDP2 puts other weights into the same places."""
    return [
        (module, name)
        for module in policy.modules()
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.requires_grad
    ]


def part_of(weights: Mapping[str, Tensor] | None, name: str) -> dict[str, Tensor] | None:
    """The weights of a part by their names in it; None where none were gathered."""
    if weights is None:
        return None
    start = f"{name}."
    return {key.removeprefix(start): weight for key, weight in weights.items() if key.startswith(start)}


def build_actor_critic(
    policy: Model, critic: str, value_model: PreTrainedModel | None, reward_model: PreTrainedModel | PeftModel | None
) -> ActorCritic:
    """Policy and critic without dropout, with ``auto`` of one kind; raises ConfigError for a critic that cannot be."""
    adapted = isinstance(policy, PeftModel)
    if critic == "auto" or value_model is not None:
        critic = "adapter" if adapted and value_model is None else "model"
    if critic == "adapter" and not adapted:
        raise ConfigError(Fault("trainer.args.critic", "adapter, beside a whole model", "model or head", "peft=lora"))
    if adapted and policy.active_peft_config.is_prompt_learning:
        raise ConfigError(fault("ppo.learnt_prompt", kind=policy.active_peft_config.peft_type.value))
    if value_model is not None and not isinstance(value_model, nn.Module):
        raise ConfigError(fault("ppo.no_critic", found=value_model))
    if value_model is not None:
        value_model.requires_grad_(True)
    elif critic == "model":
        if getattr(policy, "is_quantized", False):
            raise ConfigError(fault("ppo.rounded_critic"))
        value_model = build_critic_model(policy, reward_model)
    actor_critic = ActorCritic(policy, critic, value_model)
    disable_dropout(actor_critic)
    return actor_critic


def build_reference(policy: Model, *, adapted_later: bool) -> PreTrainedModel | None:
    """A frozen copy of the start model; None where the backbone shows it, with a copy of the adapter it came with."""
    if not isinstance(policy, PeftModel):
        return None if adapted_later else copy.deepcopy(policy)
    own = policy.active_adapter
    trained = {id(parameter) for parameter in policy.parameters() if parameter.requires_grad}
    policy.add_adapter(REFERENCE, copy.deepcopy(policy.peft_config[own]))
    weights = dict(policy.named_parameters())
    with torch.no_grad():
        for name, weight in weights.items():
            if f".{REFERENCE}." in f"{name}.":  # which is the end of the name where rows of tokens are
                weight.copy_(weights[re.sub(rf"\.{REFERENCE}\b", f".{own}", name)])
    policy.set_adapter(own)
    for parameter in policy.parameters():
        parameter.requires_grad_(id(parameter) in trained)
    return None


def build_critic_model(policy: Model, reward_model: PreTrainedModel | PeftModel | None) -> Critic:
    """A critic of its own: a copy of the reward model where there is one, else the policy's backbone with a new head.

    From the reward model values start near the scores they predict (Stiennon et al. 2020; Huang et al. 2024). The new
    head starts at zero, so that the first advantages are the rewards.
    """
    if reward_model is not None:
        return copy_reference(reward_model).to(policy.dtype).requires_grad_(True)
    source = copy_reference(policy) if isinstance(policy, PeftModel) else policy
    model: Critic | None = _build_classifier(source)
    model = model or ValueModel(copy.deepcopy(find_backbone(source)), _zero_head(source).to(source.dtype))
    return model.to(source.device).requires_grad_(True)  # buffers such as the angles of positions stay float32


def _build_classifier(source: PreTrainedModel) -> PreTrainedModel | None:
    """A classifier of one label on a copy of a model's backbone; None where transformers has none that fits it."""
    config = copy.deepcopy(source.config)
    config.num_labels = 1
    if type(config) not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING:
        return None
    with torch.random.fork_rng(devices=[]):
        model = AutoModelForSequenceClassification.from_config(config, dtype=source.dtype)
    weights = find_backbone(source).state_dict()
    if not hasattr(model, "score") or model.base_model.state_dict().keys() != weights.keys():
        return None
    model.base_model.load_state_dict(weights)
    model.score.weight.data.zero_()
    return model


def disable_dropout(model: nn.Module) -> None:
    """Set every dropout to zero: with it the ratio of the first mini-batch would not be 1 (Huang et al. 2022)."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if "drop" in name and isinstance(value, float):  # what a layer hands to a function
                setattr(module, name, 0.0)


def _write_head(head: Mapping[str, Tensor], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    state = {f"score.{name}": weight.contiguous() for name, weight in head.items()}
    save_file(state, folder / "value_head.safetensors", metadata={"format": "pt"})


def _zero_head(policy: Model) -> nn.Linear:
    model = policy.get_base_model() if isinstance(policy, PeftModel) else policy
    head = nn.Linear(model.config.get_text_config().hidden_size, 1, device=model.device)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head

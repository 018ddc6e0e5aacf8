"""Policy and critic as one module: what PPO wraps, optimises and saves together, on one backbone where possible.

What the update does with log-probabilities and values is in ``ppo``; how completions are sampled in ``generate``.
Letters at the end of a tensor's name are its shape: B rows, T tokens, N response tokens of all rows, H hidden, V
vocabulary.
"""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint
from transformers import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING, AutoModelForSequenceClassification, PreTrainedModel

from runner.errors import ConfigError, Fault
from runner.trainer.batch import LOGITS_PER_CHUNK, LOGITS_PER_CHUNK_ELSEWHERE
from runner.trainer.padding_free import ROW_BY_ROW, arguments_of, could_attend_row_by_row

CRITIC = "critic"
REFERENCE = "reference"

logger = logging.getLogger(__name__)


class States:
    """The last hidden states of a model, at the positions where they are read.

    The MLP of the last layer is worked out for those alone: it looks at each token by itself, and so does all behind
    it. Where prompts are long that is most of the layer. A model without such an MLP is left as it is.
    """

    def __init__(self, trunk: nn.Module):
        self.trunk = trunk
        self.read: tuple[Tensor, torch.Size] | None = None  # within a pass: flat positions [N], and the shape B, T
        mlp = getattr(_last_layer(trunk), "mlp", None)
        if mlp is None or not self._narrow_well(mlp):
            logger.info("%s: the MLP of the last layer is worked out for every token", type(trunk).__name__)

    def __call__(
        self, input_ids_BT: Tensor, positions_N: Tensor, row_lengths: Sequence[int] | None = None, **kwargs: Any
    ) -> Tensor:
        """States [N, H] of right-padded rows; causal attention, which looks back, needs no mask among ``kwargs``.

        With ``row_lengths`` they are those of rows that lie end to end in one line.
        """
        kwargs |= arguments_of(row_lengths, input_ids_BT.device) if row_lengths else {}
        with self.reading(positions_N, input_ids_BT.shape):
            return last_hidden_BTH(self.trunk, input_ids_BT, **kwargs).flatten(0, 1).index_select(0, positions_N)

    @contextlib.contextmanager
    def reading(self, *read: Any) -> Any:
        """Within it only these positions of rows of this shape are worked out to the end."""
        self.read = read or None
        try:
            yield
        finally:
            self.read = None

    def again(self) -> contextlib.AbstractContextManager[None]:
        """What holds now, for a layer that is computed a second time."""
        return self.reading(*(self.read or ()))

    @torch.no_grad()
    def try_row_by_row(self) -> bool:
        """Have the model attend row by row, if rows that lie end to end then have the states that they have alone."""
        if not could_attend_row_by_row(self.trunk):
            return False
        lengths, before = [3, 2], self.trunk.config.get_text_config()._attn_implementation
        ids_1T = torch.arange(sum(lengths), device=self.trunk.device).unsqueeze(0)
        same = False
        try:
            with _in_evaluation(self.trunk):
                alone_NH = torch.cat([last_hidden_BTH(self.trunk, row)[0] for row in ids_1T.split(lengths, dim=1)])
                self.trunk.set_attn_implementation(ROW_BY_ROW)
                together_NH = self(ids_1T, ids_1T[0], lengths)
            rounding = min(1e-2, 100 * torch.finfo(together_NH.dtype).eps) * float(together_NH.abs().max())
            same = torch.allclose(together_NH, alone_NH, rtol=0, atol=rounding)
        finally:
            if not same:
                self.trunk.set_attn_implementation(before)
        return same

    def _narrow(self, mlp: nn.Module, args: tuple[Tensor]) -> Tensor | None:
        return None if self.read is None else args[0].flatten(0, 1).index_select(0, self.read[0]).unsqueeze(0)

    def _widen(self, mlp: nn.Module, args: tuple[Tensor], output_1NH: Tensor) -> Tensor | None:
        if self.read is None:
            return None
        whole_BTH = output_1NH.new_zeros(*self.read[1], output_1NH.shape[-1])
        whole_BTH.flatten(0, 1).index_copy_(0, self.read[0], output_1NH[0])
        return whole_BTH

    @torch.no_grad()
    def _narrow_well(self, mlp: nn.Module) -> bool:
        """Narrow it, if it takes and gives one state per token, and the states that are read stay the same."""
        ids_BT, calls = torch.arange(4, device=self.trunk.device).unsqueeze(0), []
        positions_N = torch.tensor([1, 3], device=ids_BT.device)
        with _in_evaluation(self.trunk), mlp.register_forward_hook(lambda _, *call: calls.append(call)):
            whole_NH = self(ids_BT, positions_N)
        if len(calls) != 1 or not _is_by_token(*calls[0]):
            return False
        hooks, same = (mlp.register_forward_pre_hook(self._narrow), mlp.register_forward_hook(self._widen)), False
        try:
            with _in_evaluation(self.trunk):
                apart_NH = self(ids_BT, positions_N)
            same = torch.allclose(apart_NH, whole_NH, rtol=0, atol=1e-2 * float(whole_NH.abs().max()))
        finally:
            for hook in () if same else hooks:
                hook.remove()
        return same


def _last_layer(trunk: nn.Module) -> nn.Module | None:
    """The last of a model's layers; None where they are not in one list."""
    count = getattr(trunk.config.get_text_config(), "num_hidden_layers", None)
    lists = [module for module in trunk.modules() if isinstance(module, nn.ModuleList) and len(module) == count]
    return lists[0][-1] if len(lists) == 1 else None


def _is_by_token(args: tuple[Any, ...], output: Any) -> bool:
    one = len(args) == 1 and isinstance(args[0], Tensor) and isinstance(output, Tensor)
    return one and args[0].dim() == output.dim() == 3 and args[0].shape[:2] == output.shape[:2]


@contextlib.contextmanager
def _in_evaluation(model: nn.Module) -> Any:
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


class TokenLogProbs:
    """Log-probabilities that a causal language model gives to tokens that are already there.

    Hidden states become logits only where a token was sampled, a chunk at a time, and the backward pass makes them
    again: with 50,000 words the logits of a micro-batch would take more memory than everything else together.
    """

    def __init__(self, model: PreTrainedModel | PeftModel):
        self.model = model.get_base_model() if isinstance(model, PeftModel) else model
        self.trunk = self.model.base_model
        self.head = self.model.get_output_embeddings()
        self.states = States(self.trunk)
        self.is_plain = self._is_plain()

    def of_hidden(self, hidden_NH: Tensor, targets_N: Tensor, temperature: float) -> Tensor:
        """float32 log-probabilities of the targets under softmax(logits / temperature)."""
        rows = max(1, self._elements(hidden_NH.device) // self.head.weight.shape[0])
        once = len(hidden_NH) <= rows or not torch.is_grad_enabled()
        compute = self._of_chunk if once else self._of_chunk_twice
        pairs = zip(hidden_NH.split(rows), targets_N.split(rows), strict=True)
        return torch.cat([compute(hidden, targets, temperature) for hidden, targets in pairs])

    def __call__(
        self,
        input_ids_BT: Tensor,
        positions_N: Tensor,
        targets_N: Tensor,
        temperature: float,
        row_lengths: Sequence[int] | None = None,
    ) -> Tensor:
        """float32 log-probabilities of the targets, each seen from the position before it."""
        if self.is_plain:
            return self.of_hidden(self.states(input_ids_BT, positions_N, row_lengths), targets_N, temperature)
        logits_NV = self.model(input_ids=input_ids_BT, use_cache=False).logits.flatten(0, 1)[positions_N]
        return _gather(logits_NV, targets_N, temperature)

    def try_row_by_row(self) -> bool:
        """Have the model take rows that lie end to end, if it can."""
        return self.is_plain and self.states.try_row_by_row()

    def _of_chunk(self, hidden_NH: Tensor, targets_N: Tensor, temperature: float) -> Tensor:
        return _gather(self.head(hidden_NH), targets_N, temperature)

    def _of_chunk_twice(self, *chunk: Any) -> Tensor:
        """The same, forgotten after the forward pass and computed again in the backward pass."""
        return checkpoint(self._of_chunk, *chunk, use_reentrant=False, preserve_rng_state=False)

    @staticmethod
    def _elements(device: torch.device) -> int:
        return LOGITS_PER_CHUNK.get(device.type, LOGITS_PER_CHUNK_ELSEWHERE)

    @torch.no_grad()
    def _is_plain(self) -> bool:
        """Whether the logits are just the head of the last hidden states, without a cap or a scale of the model's."""
        ids_BT = torch.arange(4, device=self.model.device).unsqueeze(0)
        with _in_evaluation(self.model):
            whole = self.model(input_ids=ids_BT, use_cache=False).logits
            apart = self.head(last_hidden_BTH(self.trunk, ids_BT))
        return torch.equal(whole.float(), apart.float())


def last_hidden_BTH(trunk: nn.Module, input_ids_BT: Tensor, **kwargs: Any) -> Tensor:
    """The last hidden states of a model without its head."""
    return trunk(input_ids=input_ids_BT, use_cache=False, **kwargs).last_hidden_state


def _gather(logits_NV: Tensor, targets_N: Tensor, temperature: float) -> Tensor:
    logits_NV = logits_NV.float()
    return -cross_entropy(logits_NV / temperature if temperature != 1 else logits_NV, targets_N, reduction="none")


class ValueModel(nn.Module):
    """A backbone with a value for each state, where transformers has no classifier of the architecture."""

    def __init__(self, base_model: PreTrainedModel, score: nn.Linear):
        super().__init__()
        self.base_model = base_model
        self.score = score

    def activation_checkpointing_enable(self, *args: Any, **kwargs: Any) -> None:
        """As the backbone's own."""
        self.base_model.activation_checkpointing_enable(*args, **kwargs)

    def save_pretrained(self, folder: Path) -> None:
        """Write the backbone as AutoModel loads it, and the head beside it."""
        self.base_model.save_pretrained(folder)
        _save_head(self.score, folder)


Critic = PreTrainedModel | ValueModel


class ActorCritic(nn.Module):
    """Log-probabilities of the policy and values of the critic for the response tokens of a micro-batch.

    The critic is a ``model`` of its own with one label, a second ``adapter`` on the policy's backbone with a linear
    head, or only a linear ``head`` on the policy's hidden states. ``state_dict`` holds what training changes, each
    weight once, so that a checkpoint of an adapter stays as small as the adapter.
    """

    def __init__(self, policy: PreTrainedModel | PeftModel, critic: str, value_model: Critic | None = None):
        super().__init__()
        self.policy = policy
        self.critic = critic
        self.value_model = value_model
        self.value_head = None if critic == "model" else _zero_head(policy)
        self.switch = Switch(policy) if isinstance(policy, PeftModel) else None
        if critic == "adapter":
            policy.add_adapter(CRITIC, copy.deepcopy(policy.peft_config[policy.active_adapter]))
            self.switch.keep_trainable(CRITIC)
        self.backbone = TokenLogProbs(policy)
        self.value_states = None if value_model is None else States(value_model.base_model)

    def try_row_by_row(self) -> bool:
        """Have policy and critic take rows that lie end to end, if both can."""
        return self.backbone.try_row_by_row() and (self.value_states is None or self.value_states.try_row_by_row())

    @property
    def config(self) -> Any:
        return self.policy.config

    @property
    def device(self) -> torch.device:
        return self.policy.device

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        targets: Tensor,
        temperature: float = 1.0,
        row_lengths: Sequence[int] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities and values, float32 [N]; ``positions`` are flat indices of the states before the tokens.

        Rows are padded on the right, or lie end to end in one line if their lengths are given.
        """
        if self.critic == "head" and self.backbone.is_plain:
            hidden_NH = self.backbone.states(input_ids, positions, row_lengths)
            return self.backbone.of_hidden(hidden_NH, targets, temperature), self._of_head(hidden_NH)
        values_N = self.values(input_ids, positions, row_lengths)
        return self.logprobs(input_ids, positions, targets, temperature, row_lengths), values_N

    def logprobs(self, *batch: Any) -> Tensor:
        """What the policy gives to the tokens, float32 [N]; arguments as those of ``forward``."""
        with self.adapter(None):
            return self.backbone(*batch)

    def values(self, *batch: Any) -> Tensor:
        """The critic's values of the states at flat positions, float32 [N]; arguments as those of ``States``."""
        if self.value_model is not None:
            return self.value_model.score(self.value_states(*batch)).squeeze(-1).float()
        with self.adapter(CRITIC if self.critic == "adapter" else None):
            return self._of_head(self.backbone.states(*batch))

    def reference_logprobs(self, *batch: Any) -> Tensor:
        """What the start model gives to the tokens: the backbone without the adapter, or with that of the start."""
        with self.adapter(REFERENCE if REFERENCE in self.policy.peft_config else Switch.NONE):
            return self.backbone(*batch)

    def _of_head(self, hidden_NH: Tensor) -> Tensor:
        return self.value_head(hidden_NH.to(self.value_head.weight.dtype)).squeeze(-1).float()

    def adapter(self, name: str | None) -> contextlib.AbstractContextManager[None]:
        """The backbone under one of its adapters; None is the policy's own."""
        return contextlib.nullcontext() if self.switch is None else self.switch.to(name)

    def rest(self) -> None:
        """Put the policy's own adapter on again, where a recomputed layer has left another."""
        with self.adapter(None):
            pass

    def activation_checkpointing_enable(
        self, activation_checkpointing_kwargs: dict[str, Any] | None = None, **layers: Any
    ) -> None:
        """Recompute activations in the backward pass, each layer under the adapter that it ran under."""
        kwargs = dict(activation_checkpointing_kwargs or {}) | {"use_reentrant": False}
        if self.value_model is not None:
            value_kwargs = kwargs | {"context_fn": lambda: (contextlib.nullcontext(), self.value_states.again())}
            self.value_model.activation_checkpointing_enable(value_kwargs, **layers)
        kwargs["context_fn"] = lambda: (contextlib.nullcontext(), self._again())
        self.policy.activation_checkpointing_enable(kwargs, **layers)

    def _again(self) -> contextlib.AbstractContextManager[None]:
        """What holds now for the policy's layers, for one that is computed a second time."""
        states = self.backbone.states.again()
        return states if self.switch is None else _both(self.switch.again(), states)

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        whole = super().state_dict(*args, **kwargs)
        return {name: whole[name] for name in self._trained()}

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

    def forget_policy_gradient(self) -> None:
        """Leave only the gradient of the critic's own weights."""
        for name, parameter in self.policy.named_parameters():
            if f".{CRITIC}." not in name:
                parameter.grad = None

    def save_policy(self, folder: Path) -> None:
        """Write the policy, or its adapter alone, as ``from_pretrained`` loads it."""
        if not isinstance(self.policy, PeftModel):
            self.policy.save_pretrained(folder)
            return
        own = self.policy.active_adapter
        self.policy.save_pretrained(folder, selected_adapters=[own])
        inner = folder / own  # where peft puts an adapter that is not called default
        for path in inner.glob("*"):
            path.rename(folder / path.name)
        if inner.exists():
            inner.rmdir()

    def save_value(self, folder: Path) -> None:
        """Write the critic so that it loads elsewhere: a classification model, or a head and perhaps its adapter."""
        folder.mkdir(parents=True, exist_ok=True)
        if self.value_model is not None:
            self.value_model.save_pretrained(folder)
            return
        if self.critic == "adapter":
            self.policy.save_pretrained(folder, selected_adapters=[CRITIC])
        _save_head(self.value_head, folder)


@contextlib.contextmanager
def _both(one: contextlib.AbstractContextManager[None], other: contextlib.AbstractContextManager[None]) -> Any:
    with one, other:
        yield


class Switch:
    """Changes the active adapter of a policy, and keeps every adapter in training trainable.

    Peft freezes each adapter that is not active; after a look at the reference the critic would silently stand still.
    """

    NONE = ""

    def __init__(self, policy: PeftModel):
        self.policy = policy
        self.active = self.own = policy.active_adapter
        self.trainable = [parameter for parameter in policy.parameters() if parameter.requires_grad]

    def keep_trainable(self, adapter: str) -> None:
        """Count the weights of a new adapter among those that train."""
        self.policy.set_adapter(adapter)
        known = set(map(id, self.trainable))
        self.trainable += [p for p in self.policy.parameters() if p.requires_grad and id(p) not in known]
        self.policy.set_adapter(self.own)
        self._thaw()

    @contextlib.contextmanager
    def to(self, name: str | None) -> Any:
        """Within it the backbone runs under this adapter, or under none; after it under the policy's own."""
        self._use(self.own if name is None else name)
        try:
            yield
        finally:
            self._use(self.own)

    def again(self) -> contextlib.AbstractContextManager[None]:
        """What holds now, for a layer that is computed a second time."""
        return self._stay(self.active)

    @contextlib.contextmanager
    def _stay(self, name: str) -> Any:
        """The adapter of a recomputed layer, and of those that follow: to switch back at each would cost more."""
        self._use(name)
        yield

    def _use(self, name: str) -> None:
        if name == self.active:
            return
        if name == self.NONE:
            self.policy.base_model.disable_adapter_layers()
        else:
            self.policy.base_model.enable_adapter_layers()
            self.policy.set_adapter(name)
        self.active = name
        self._thaw()

    def _thaw(self) -> None:
        for parameter in self.trainable:
            parameter.requires_grad_(True)


def build_actor_critic(
    policy: PreTrainedModel | PeftModel, critic: str, value_model: Any, reward_model: Any
) -> ActorCritic:
    """The policy with the critic that is asked for, without dropout.

    ``auto`` is an adapter beside an adapter, else a model. Raises ConfigError for a critic that this policy cannot
    have.
    """
    adapted = isinstance(policy, PeftModel)
    critic = ("adapter" if adapted else "model") if critic == "auto" else critic
    critic = "model" if value_model is not None else critic
    if critic == "adapter" and not adapted:
        raise ConfigError(Fault("trainer.args.critic", "adapter, beside a whole model", "model or head", "peft=lora"))
    if adapted and policy.active_peft_config.is_prompt_learning:
        found = f"{policy.active_peft_config.peft_type.value} puts a learnt prompt before the tokens"
        raise ConfigError(Fault("peft", found, "an adapter inside the layers", "peft=lora"))
    if critic == "model" and value_model is None:
        if getattr(policy, "is_quantized", False):
            found = "a model of its own, beside a quantised policy"
            raise ConfigError(Fault("trainer.args.critic", found, "an adapter", "trainer.args.critic=adapter"))
        value_model = build_critic_model(policy, reward_model)
    actor_critic = ActorCritic(policy, critic, value_model)
    disable_dropout(actor_critic)
    return actor_critic


def build_reference(model: PreTrainedModel | PeftModel, *, adapted_later: bool) -> PreTrainedModel | None:
    """A frozen copy of the start model; None where its backbone can show it, because training changes an adapter."""
    if isinstance(model, PeftModel):
        add_reference_adapter(model)
    return None if adapted_later or isinstance(model, PeftModel) else copy.deepcopy(model)


def build_critic_model(policy: PreTrainedModel | PeftModel, reward_model: PreTrainedModel | None) -> Critic:
    """A critic of its own: a copy of the reward model where there is one, else the policy's backbone with a new head.

    From the reward model values start near the scores they predict (Stiennon et al. 2020; Huang et al. 2024). The new
    head starts at zero, so that the first advantages are the rewards.
    """
    if reward_model is not None:
        return _plain_copy(reward_model).to(policy.dtype).requires_grad_(True)
    source = _plain_copy(policy) if isinstance(policy, PeftModel) else policy
    model = _build_classifier(source)
    if model is None:
        model = ValueModel(copy.deepcopy(source.base_model), _zero_head(source).to(source.dtype))
    return model.to(source.device).requires_grad_(True)


def _build_classifier(source: PreTrainedModel) -> PreTrainedModel | None:
    """A classifier of one label on a copy of a model's backbone; None where transformers has none that fits it."""
    config = copy.deepcopy(source.config)
    config.num_labels = 1
    if type(config) not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING:
        return None
    with torch.random.fork_rng(devices=[]):
        model = AutoModelForSequenceClassification.from_config(config, dtype=source.dtype)
    weights = source.base_model.state_dict()
    if not hasattr(model, "score") or model.base_model.state_dict().keys() != weights.keys():
        return None
    model.base_model.load_state_dict(weights)
    model.score.weight.data.zero_()
    return model


def _plain_copy(model: PreTrainedModel | PeftModel) -> PreTrainedModel:
    """A copy of a model, its adapter merged into the weights."""
    model = copy.deepcopy(model)
    return model.merge_and_unload() if isinstance(model, PeftModel) else model


def add_reference_adapter(policy: PeftModel) -> None:
    """A frozen copy of the adapter that the policy came with: without it the start model would be forgotten."""
    own = policy.active_adapter
    trainable = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    policy.add_adapter(REFERENCE, copy.deepcopy(policy.peft_config[own]))
    weights = dict(policy.named_parameters())
    with torch.no_grad():
        for name, weight in weights.items():
            if f".{REFERENCE}." in name:
                weight.copy_(weights[name.replace(f".{REFERENCE}.", f".{own}.")])
                weight.requires_grad_(False)
    policy.set_adapter(own)
    trained = set(map(id, trainable))
    for parameter in policy.parameters():
        parameter.requires_grad_(id(parameter) in trained)


def disable_dropout(model: nn.Module) -> None:
    """Set every dropout to zero: with it the ratio of the first mini-batch would not be 1 (Huang et al. 2022)."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if "drop" in name and isinstance(value, float):  # what a layer hands to a function
                setattr(module, name, 0.0)


def _save_head(head: nn.Linear, folder: Path) -> None:
    state = {f"score.{name}": weight.contiguous() for name, weight in head.state_dict().items()}
    save_file(state, folder / "value_head.safetensors", metadata={"format": "pt"})


def _zero_head(policy: PreTrainedModel | PeftModel) -> nn.Linear:
    """One value per hidden state; zero at the start, in float32."""
    lm = policy.get_base_model() if isinstance(policy, PeftModel) else policy
    head = nn.Linear(lm.config.get_text_config().hidden_size, 1, device=lm.device)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head

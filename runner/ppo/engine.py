"""The sampler of PPO's rollouts: the policy itself, or a vLLM that is sent the policy's weights.

Each function takes the PPOTrainer, of which it reads only what is public.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from torch import Tensor
from transformers import Trainer

from runner.generate.padding import Prompts
from runner.generate.sampler import Responses, Sampler, Sampling, sample, whole
from runner.generate.vllm_engine import VLLMEngine, start_training_engine
from runner.generate.vllm_server import ServerSettings, VLLMServer

WEIGHTS_FOLDER = ".vllm-weights"  # in the folder of the checkpoints

Engine: TypeAlias = VLLMEngine | VLLMServer


class RolloutEngine:
    """A vLLM, and the step whose weights it has."""

    def __init__(self, trainer: Trainer):
        """Raises ConfigError and EnvironmentFault, as the engine does."""
        self.step: int | None = None
        self.adapter = trainer.actor_critic.policy_adapter or None
        if trainer.args.vllm_mode == "server":
            self.engine: Engine = _build_server(trainer)
        else:
            self.engine = _build_engine(trainer)

    def refresh(self, trainer: Trainer) -> None:
        """Send the weights, if they are not those that it has; all processes do so together."""
        step = trainer.state.global_step
        if step == self.step:
            return
        policy = trainer.actor_critic.policy
        with whole(trainer.actor_critic):
            if isinstance(self.engine, VLLMServer):
                run = Path(trainer.args.output_dir).resolve()
                self.engine.load_weights(policy, f"{run}, step {step}", self.adapter)
            else:
                self.engine.load_weights(policy, self.adapter)
        trainer.accelerator.wait_for_everyone()
        self.step = step

    def sample(self, prompts: Prompts, how: Sampling, noise_BR: Tensor) -> Responses:
        """A completion for each prompt."""
        return self.engine.sample(prompts, how, noise_BR)

    @property
    def needs_everyone(self) -> bool:
        """True where processes share a model, so that all must ask for completions together."""
        return isinstance(self.engine, VLLMEngine) and self.engine.group is not None


def build_rollout_engine(trainer: Trainer) -> RolloutEngine | None:
    """The vLLM of a trainer that samples by one."""
    return RolloutEngine(trainer) if trainer.args.rollout_engine == "vllm" else None


@contextmanager
def sampling_context(trainer: Trainer) -> Iterator[Sampler]:
    """The sampler of a trainer, with the weights of its step; all processes enter it together."""
    engine_sampler: Sampler | None = trainer.engine_sampler()
    if engine_sampler is not None:
        yield engine_sampler
        return
    policy = trainer.actor_critic.policy
    with trainer.accelerator.autocast(), whole(trainer.actor_critic):
        yield functools.partial(sample, policy, engine=trainer.args.rollout_engine)


def _build_engine(trainer: Trainer) -> VLLMEngine:
    """A vLLM on the cards of the training."""
    args = trainer.args
    return start_training_engine(
        trainer.actor_critic.policy,
        trainer.accelerator,
        trainer.actor_critic.policy_adapter or None,
        logprobs_mode="processed_logprobs",
        gpu_memory_utilization=args.vllm_gpu_memory_utilization,
        max_model_length=args.vllm_max_model_length,
        enable_sleep_mode=args.vllm_enable_sleep_mode,
        tensor_parallel_size=args.vllm_tensor_parallel_size,
    )


def _build_server(trainer: Trainer) -> VLLMServer:
    """A vLLM elsewhere."""
    args = trainer.args
    transfer = args.vllm_weight_transfer
    if transfer == "auto":
        transfer = "nccl" if args.device.type == "cuda" else "folder"
    settings = ServerSettings(
        url=args.vllm_server_base_url.rstrip("/"),
        timeout=args.vllm_server_timeout,
        transfer=transfer,
        folder=Path(args.output_dir) / WEIGHTS_FOLDER,
    )
    sends = trainer.accelerator.is_main_process
    return VLLMServer(trainer.actor_critic.policy, settings, sends=sends)

"""The engine that samples held-out answers in the place of the trained model, if there is one."""

from dataclasses import dataclass

import torch
from transformers import Trainer

from runner.generate.sampler import Model, Sampler, whole
from runner.generate.vllm_engine import VLLMEngine, start_training_engine

SHARE_OF_CARD = 0.3  # for vLLM, which frees it while the training goes on


@dataclass
class HeldOutEngine:
    """A vLLM that begins with the first evaluation which asks for it, or that of the trainer."""

    is_wanted: bool = False  # beside a trainer that has none
    vllm: VLLMEngine | None = None
    step: int = 0  # whose weights it has

    def sampler_of(self, trainer: Trainer, model: Model) -> Sampler | None:
        """The engine's sampler, with the weights that ``model`` has now; None without an engine.

        All processes ask for it together, before they gather the weights.
        """
        own_engine = getattr(trainer, "engine_sampler", None)
        sampler: Sampler | None = own_engine() if own_engine else None
        if sampler is not None or not self.is_wanted:
            return sampler
        step = trainer.state.global_step
        with whole(trainer.accelerator.unwrap_model(trainer.model)):
            if self.vllm is None:
                self.vllm = start_training_engine(
                    model,
                    trainer.accelerator,
                    gpu_memory_utilization=SHARE_OF_CARD,
                    enable_sleep_mode=torch.accelerator.is_available(),
                )
            elif step != self.step:
                self.vllm.load_weights(model)
        self.step = step
        return self.vllm.sample

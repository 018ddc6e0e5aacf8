"""The part of vLLM that shares a process with a training: a model that receives weights.

Log-probabilities and random numbers are its own, too. ``tests/fault/vllm_real.py`` shows that the
real one takes and gives the same.
"""

import os
import sys
from types import ModuleType, SimpleNamespace

import torch
from transformers import AutoModelForCausalLM

from vllm.sampling_params import SamplingParams

__version__ = "0.30.0"
RequestOutput = SimpleNamespace
# TRL imports these for servers; nothing here uses them.
SERVED = {
    "vllm.utils": (),
    "vllm.utils.network_utils": ("get_ip", "get_open_port"),
    "vllm.distributed": (),
    "vllm.distributed.weight_transfer": (),
    "vllm.distributed.weight_transfer.nccl_common": ("trainer_init",),
    "vllm.distributed.weight_transfer.packed_tensor": ("packed_nccl_broadcast_producer",),
    "vllm.distributed.weight_transfer.nccl_engine": (
        "NCCLTrainerSendWeightsArgs",
        "NCCLWeightTransferEngine",
    ),
    "vllm.platforms": ("current_platform",),
    "vllm._custom_ops": ("_supports_onednn",),
    "vllm.model_executor": (),
    "vllm.model_executor.layers": (),
    "vllm.model_executor.layers.utils": ("check_cpu_sgl_kernel",),
}
for module, names in SERVED.items():
    sys.modules[module] = ModuleType(module)
    vars(sys.modules[module]).update(dict.fromkeys(names))
sys.modules["vllm.platforms"].current_platform = SimpleNamespace(is_cpu=lambda: True)
OPERATIONS = sys.modules["vllm._custom_ops"]
OPERATIONS._supports_onednn = True


class LLM:
    def __init__(self, model, enable_sleep_mode=False, seed=0, **settings):
        if int(os.environ.get("VLLM_CPU_KVCACHE_SPACE", "0")) > 1000:
            raise ValueError("Available memory is less than requested memory for kv")
        self.logprobs_mode = settings["logprobs_mode"]
        self.is_packed = OPERATIONS._supports_onednn
        self.generator = torch.Generator().manual_seed(seed)
        self.is_asleep = False
        with torch.random.fork_rng():
            self.model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        worker = SimpleNamespace(model_runner=SimpleNamespace(model=self))
        self.llm_engine = SimpleNamespace(model_executor=SimpleNamespace(driver_worker=worker))

    def collective_rpc(self, method, kwargs):
        assert method == "reload_weights"
        self.load_weights(kwargs["weights_iterator"])

    def load_weights(self, weights):
        assert not self.is_asleep
        if self.is_packed:
            raise AttributeError("'Parameter' object has no attribute 'weight_loader'")
        for name, weight in weights:
            self.model.get_parameter(name).data.copy_(weight)

    def reset_prefix_cache(self):
        pass

    def wake_up(self, tags=None):
        self.is_asleep = False

    def sleep(self, level):
        self.is_asleep = True

    @torch.no_grad()
    def generate(self, prompts, sampling_params, use_tqdm=False):
        assert not self.is_asleep
        settings = sampling_params
        if isinstance(settings, SamplingParams):
            assert "seed" not in settings.given  # all prompts would be answered with its numbers
            settings = [settings] * len(prompts)
        answers = []
        for prompt, of_prompt in zip(prompts, settings, strict=True):
            answers.append(self._complete(prompt["prompt_token_ids"], of_prompt.given))
        return answers

    def _complete(self, prompt, how):
        generator = self.generator
        if "seed" in how:
            generator = torch.Generator().manual_seed(how["seed"])
        temperature = how["temperature"]
        tokens = []
        logprobs = []
        ends = set(how.get("stop_token_ids") or [self.model.generation_config.eos_token_id])
        while len(tokens) < how["max_tokens"] and not ends & set(tokens):
            logits = self.model(torch.tensor([[*prompt, *tokens]])).logits[0, -1].float()
            sampled = torch.log_softmax(logits / (temperature or 1.0), -1)
            token = int(logits.argmax())
            if temperature:
                token = int(torch.multinomial(sampled.exp(), 1, generator=generator))
            shown = sampled
            if self.logprobs_mode == "raw_logprobs":
                shown = torch.log_softmax(logits, -1)
            tokens.append(token)
            logprobs.append({token: SimpleNamespace(rank=1, logprob=shown[token].item())})
        answer = SimpleNamespace(token_ids=tokens, logprobs=logprobs)
        return RequestOutput(prompt_token_ids=prompt, outputs=[answer])

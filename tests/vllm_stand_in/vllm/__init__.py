"""The part of vLLM that TRL uses if both share a process: a model of its own that receives weights.

Log-probabilities and random numbers are its own, too. The real one needs a GPU.
"""

import sys
from types import ModuleType, SimpleNamespace

import torch
from transformers import AutoModelForCausalLM

from vllm.sampling_params import SamplingParams

__version__ = "0.24.0"
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
}
for module, names in SERVED.items():
    sys.modules[module] = ModuleType(module)
    vars(sys.modules[module]).update(dict.fromkeys(names))


class LLM:
    def __init__(self, model, seed, enable_sleep_mode=False, **settings):
        assert settings["logprobs_mode"] == "processed_logprobs"
        self.generator = torch.Generator().manual_seed(seed)
        self.is_asleep = False
        with torch.random.fork_rng():
            self.model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        for weight in self.model.parameters():
            weight.data.zero_()  # the training sends the weights to sample with
        worker = SimpleNamespace(model_runner=SimpleNamespace(model=self))
        self.llm_engine = SimpleNamespace(model_executor=SimpleNamespace(driver_worker=worker))

    def load_weights(self, weights):
        assert not self.is_asleep
        for name, weight in weights:
            self.model.get_parameter(name).data.copy_(weight)

    def reset_prefix_cache(self):
        pass

    def wake_up(self, tags):
        self.is_asleep = False

    def sleep(self, level):
        self.is_asleep = True

    @torch.no_grad()
    def generate(self, prompts, sampling_params: SamplingParams, use_tqdm=False):
        return [
            self._complete(prompt["prompt_token_ids"], sampling_params.given) for prompt in prompts
        ]

    def _complete(self, prompt, how):
        tokens = []
        logprobs = []
        ends = set(how.get("stop_token_ids") or [self.model.generation_config.eos_token_id])
        while len(tokens) < how["max_tokens"] and not ends & set(tokens):
            logits = self.model(torch.tensor([[*prompt, *tokens]])).logits[0, -1].float()
            of_each = torch.log_softmax(logits / how["temperature"], -1)
            token = int(torch.multinomial(of_each.exp(), 1, generator=self.generator))
            tokens.append(token)
            logprobs.append({token: SimpleNamespace(rank=1, logprob=of_each[token].item())})
        answer = SimpleNamespace(token_ids=tokens, logprobs=logprobs)
        return RequestOutput(prompt_token_ids=prompt, outputs=[answer])

"""The help of the verb ``export``, and its options."""

from dataclasses import dataclass, field
from typing import Literal

from runner.command import VERBS

HELP = (
    "python -m runner export RUN [format=gguf|fp8] [dtype=bfloat16] [to=FOLDER] [push=org/name]",
    VERBS["export"] + "; transformers and vLLM load the folder by itself: safetensors, tokenizer, "
    "chat template, generation settings, and a model card with configuration, data, curves and "
    "results. An adapter is merged into its base, and the largest difference that makes is "
    "printed; weights that were trained whole are copied. A reward model is written with its "
    "score head, of PPO only the policy.",
    {
        "format=gguf": "one file for llama.cpp and Ollama instead, with a Modelfile",
        "format=fp8": "the weights of linear layers in 8 bits, for vLLM and transformers with "
        "torchao; the rest has dtype, by default bfloat16",
        "dtype=bfloat16": "float32, bfloat16 or float16; the default is model.dtype of the run. Of "
        "a GGUF file also q8_0, and with llama.cpp's tool llama-quantize on PATH q4_k_m and "
        "others; the default has 16 bits",
        "to=FOLDER": "where to; the default is <run>/export, or <run>/export-gguf or "
        "export-fp8. An earlier export there is replaced, nothing else",
        "push=org/name": "also upload it, to a private repository; never done without these words",
        "private=false": "make that repository public",
        "license=apache-2.0": "for the card; the default is that of the base model, where it can "
        "be found",
        "trust_remote_code=true": "run the code that comes with the base model, if the run did",
        "output_root=outputs": "where names and keys of runs are looked up",
    },
)


@dataclass(frozen=True)
class Options:
    """The options of ``export``."""

    format: Literal["safetensors", "gguf", "fp8", "awq", "gptq"] = "safetensors"
    dtype: (
        Literal[
            "float32",
            "bfloat16",
            "float16",
            "f32",
            "bf16",
            "f16",
            "q8_0",
            "q6_k",
            "q5_k_m",
            "q5_k_s",
            "q5_0",
            "q4_k_m",
            "q4_k_s",
            "q4_0",
            "q3_k_l",
            "q3_k_m",
            "q3_k_s",
            "q2_k",
            "iq4_xs",
            "iq4_nl",
        ]
        | None
    ) = None
    to: str | None = None
    push: str | None = field(default=None, metadata={"parts": "org/name"})
    private: bool = True
    license: str | None = None
    trust_remote_code: bool | None = None
    output_root: str = "outputs"

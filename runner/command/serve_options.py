"""The help of the verb ``serve``, and its options."""

from dataclasses import dataclass
from typing import Literal

from runner.command import VERBS
from runner.command._ask_options import ModelOptions
from runner.schema.ranges import Count, Port

HELP = (
    "python -m runner serve RUN [engine=vllm] [port=8000] [key=value ...]",
    VERBS["serve"] + ", on 127.0.0.1: chat completions, also as a stream, and the list of models, "
    "by a server that is installed. An adapter is merged into its base first, into a folder that "
    "goes when the server ends; an earlier export of the run is taken instead. RUN may also be "
    "the folder of an exported model, or a name on the hub. Ctrl-C ends it.",
    {
        "engine=vllm": "vllm, transformers (its own server, with the extra serve), llama.cpp "
        "(llama-server, with the file of export RUN format=gguf); auto is the first of vllm, "
        "llama.cpp and transformers that can serve this model",
        "port=8000": "the port; port=0 is any free one",
        "max_length=4096": "the most tokens of a conversation with its answer, where the engine "
        "should set aside memory for fewer than the model takes",
        "checkpoint=last": "model, best, last, a step, or start; the default as for predict",
        "model.dtype=bfloat16": "the precision of the weights",
        "output_root=outputs": "where names and keys of runs are looked up",
    },
    "From another machine: ssh -L 8000:127.0.0.1:8000. Whoever can reach the port can ask the "
    "model, unless VLLM_API_KEY is set, or LLAMA_API_KEY for llama.cpp.",
)


@dataclass(frozen=True)
class Options(ModelOptions):
    """The options of ``serve``."""

    engine: Literal["auto", "vllm", "llama.cpp", "transformers"] = "auto"
    port: Port = 8000
    max_length: Count | None = None

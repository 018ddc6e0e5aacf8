"""The help of the verb ``predict``, and its options."""

from dataclasses import dataclass, field
from typing import Literal

from runner.command import VERBS
from runner.command._ask_options import AskOptions

HELP = (
    'python -m runner predict RUN [dataset=... | file=... | prompt="..."] [key=value ...]',
    VERBS["predict"] + ": with the run's own template and stop tokens, in batches of prompts of "
    "like length. Rows go to <run>/predictions/<rows>-<key>.jsonl, a line for each completion in "
    "the order of the rows, with row, sample, prompt, completion, finish (stop or length), "
    "log_probability and tokens. The log-probability is the sum over the completion's tokens "
    "under the model at temperature 1, however they were drawn. The same command again continues "
    "what was interrupted, with the same result. A reward model gives a score for each known "
    "answer instead.",
    {
        "dataset=toy_sort": "other rows than the run's held-out ones: any option or key of the "
        "dataset group",
        "file=rows.jsonl": "a file of rows, short for dataset=local dataset.path=rows.jsonl",
        "set=eval": "train, eval, or the name of one held-out set",
        "limit=100": "the first rows only",
        'prompt="..."': "one prompt; the completion is printed, and nothing else goes to the "
        "standard output",
        'completion="..."': "with a prompt for a reward model: prints the score of this answer",
        "as=text": "continue the prompt as it stands; as=chat opens a turn of the chat template. "
        "The default is what the run's own samples were, else chat where the tokenizer has a "
        "template",
        "checkpoint=last": "model, best, last, a step, or start (the model before training); the "
        "default is the model of a finished run, else the best or newest sealed checkpoint",
        "engine=vllm": "vLLM samples, in this process, from the weights of the run, an adapter "
        "merged; a greedy completion is the same but for rounding, others have vLLM's random "
        "numbers. auto is the fastest of the runner's own: loop, graph (CUDA) or generate",
        "batch_size=32": "prompts side by side; half as many where memory does not suffice; "
        "vLLM finds its number itself",
        "max_new_tokens=64": "the default is the length that the run trained with, else 64",
        "temperature=1": "0 is greedy; the default is 0 for one completion and 1 for several",
        "top_k=0 top_p=1": "leave out all but the likeliest tokens",
        "n=4": "completions for each prompt",
        "logits=true": "the logits before each token, too: "
        "<file>.logits/<row>-<sample>.safetensors, with token_ids",
        "seed=0": "each completion's random numbers come from seed, row and sample alone",
        "to=file.jsonl": "another place",
        "output_root=outputs": "where names and keys of runs are looked up",
    },
    "With callback=... typed, or allow=[my] for the run's own callbacks, those that handle "
    "on_prediction_step (a batch) or on_predict (the end, with metrics) and ask for no "
    "trainer are called.",
    "Without a RUN, any model: predict model=hub model.path=org/name dataset=..., with "
    "head=score for a reward model.",
)


@dataclass(frozen=True)
class Options(AskOptions):
    """The options of ``predict``."""

    prompt: str | None = None
    completion: str | None = None
    style: Literal["chat", "text"] | None = field(default=None, metadata={"key": "as"})
    logits: bool = False

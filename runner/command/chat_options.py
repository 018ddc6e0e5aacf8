"""The help of the verb ``chat``, and its options."""

from dataclasses import dataclass, field
from typing import Literal

from runner.command import VERBS
from runner.command._ask_options import SamplingOptions
from runner.schema.ranges import Count, NotNegative

HELP = (
    "python -m runner chat RUN [against=start | against=RUN2] [key=value ...]",
    VERBS["chat"] + ", in its own chat template, a word at a time. A model without a template "
    "continues each text as it stands. Ctrl-C stops an answer, not the chat. With prompt=, or a "
    "text from a pipe, one answer goes to the standard output, and nothing else. RUN may also be "
    "the folder of an exported model, or a name on the hub.",
    {
        "against=start": "a second model that answers the same questions: start (the model before "
        "the training), another run, or a model",
        'system="..."': "the system prompt",
        'prompt="..."': "one question; the answer is printed, and the command ends",
        "tools=false": "offer none of the run's own tools, whose calls are otherwise made and "
        "shown",
        "as=text": "continue each text as it stands; as=chat uses the template. The default is "
        "what the run's own samples were",
        "max_new_tokens=512": "the most tokens of an answer",
        "temperature=0.7": "0 takes the likeliest token each time",
        "top_k=0 top_p=1": "leave out all but the likeliest tokens",
        "seed=0": "the same questions get the same answers",
        "checkpoint=last": "model, best, last, a step, or start (the model before training)",
        "model.dtype=bfloat16": "any key of the groups model and quant: quant=4bit",
        "output_root=outputs": "where names and keys of runs are looked up",
    },
    """\
In the chat:
    /reset                forget what was said
    /system [TEXT]        show or change the system prompt
    /save [FILE]          add the conversation to a file as a row that dataset=FILE reads, by
                          default to <run>/chats/chat.jsonl
    /help                 these words
    /quit                 end, as Ctrl-D does""",
)


@dataclass(frozen=True)
class Options(SamplingOptions):
    """The options of ``chat``."""

    max_new_tokens: Count | None = 512
    temperature: NotNegative | None = 0.7
    against: str | None = None
    system: str | None = None
    prompt: str | None = None
    tools: bool = True
    style: Literal["chat", "text"] | None = field(default=None, metadata={"key": "as"})

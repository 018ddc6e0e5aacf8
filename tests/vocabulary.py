"""The tokenizer of the shipped tiny model, trained again from the shipped rows.

``python tests/vocabulary.py``.

A byte-level BPE, so that it can spell any text, with ChatML turns. The weights next to it come from
``python -m runner experiment=tiny_base``, not from here. They are of a Llama, because for some
other architectures transformers would split texts by rules of its own, whatever tokenizer.json
says.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from runner.io.files import shipped

SIZE = 640  # more than needed: every word of the rows is a single token earlier
LONGEST = 1024  # tokens; what the tiny model was given positions for
PAD = "<|endoftext|>"
TURN = "<|im_start|>"
END = "<|im_end|>"
ROWS = ("runner://dataset/toy_sort/train.jsonl", "runner://dataset/toy_reviews/train.jsonl")

# The generation marks tell trainers which tokens the assistant wrote, its end of turn included.
CHAT_TEMPLATE = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' }}
    {%- if message['role'] == 'assistant' %}
        {%- generation %}
            {{- message['content'] + '<|im_end|>' }}
        {%- endgeneration %}
    {%- else %}
        {{- message['content'] + '<|im_end|>' }}
    {%- endif %}
    {{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The tiny model's tokenizer; the same one each time."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE,
        special_tokens=[PAD, TURN, END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(turns(), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=END,
        pad_token=PAD,
        padding_side="left",
        model_max_length=LONGEST,
        chat_template=CHAT_TEMPLATE,
    )


def turns() -> Iterator[str]:
    """Every turn of the shipped training rows, preceded by its role, as the template writes it."""
    for path in ROWS:
        for line in Path(shipped(path)).read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            for message in row["prompt"] + row["chosen"] + row["rejected"]:
                yield f"{message['role']}\n{message['content']}"


if __name__ == "__main__":
    build_tokenizer().save_pretrained(shipped("runner://model/tiny"))

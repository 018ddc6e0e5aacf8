"""Prompt styles by name, compared with what the tools that named them write.

The texts of theirs were recorded by running their code: LLaMA-Factory's ``Template`` (the pieces
that it encodes apart, question and answer in turn) and Axolotl's ``AlpacaPrompter``. Line ends that
LLaMA-Factory writes behind the last end token are left out.
"""

import json

import pytest
import yaml

from runner.dataset.load import load_rows
from runner.importers.foreign_file import read_file
from runner.importers.translate import translate
from runner.model.jinja import find_template_faults, read_template

ALPACA = (
    "Below is an instruction that describes a task. "
    "Write a response that appropriately completes the request.\n\n"
)
ALPACA_WITH_INPUT = (
    "Below is an instruction that describes a task, paired with an input that provides further "
    "context. Write a response that appropriately completes the request.\n\n"
)
VICUNA = (
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions."
)
SYSTEM = {"role": "system", "content": "Be brief."}
TURNS = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "More?"},
    {"role": "assistant", "content": "No"},
]
# LLaMA-Factory's pieces of TURNS, by name: without and with a system text. Names in brackets are
# TRL's, of families.
THEIRS = {
    "alpaca": (
        [
            f"<s>{ALPACA}### Instruction:\nHi\n\n### Response:\n",
            "Hello</s>\n\n",
            "### Instruction:\nMore?\n\n### Response:\n",
            "No</s>",
        ],
        None,
    ),
    "vicuna": (
        [f"{VICUNA}USER: Hi ASSISTANT:", "Hello</s>", "USER: More? ASSISTANT:", "No</s>"],
        ["Be brief.USER: Hi ASSISTANT:", "Hello</s>", "USER: More? ASSISTANT:", "No</s>"],
    ),
    "llama2": (
        ["<s>[INST] Hi [/INST]", "Hello</s>", "<s>[INST] More? [/INST]", "No</s>"],
        [
            "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST]",
            "Hello</s>",
            "<s>[INST] More? [/INST]",
            "No</s>",
        ],
    ),
    "mistral": (
        ["<s>[INST] Hi[/INST]", " Hello</s>", "[INST] More?[/INST]", " No</s>"],
        ["<s>[INST] Be brief.\n\nHi[/INST]", " Hello</s>", "[INST] More?[/INST]", " No</s>"],
    ),
    "zephyr": (
        [
            "<|system|>\nYou are Zephyr, a helpful assistant.</s>",
            "<|user|>\nHi</s><|assistant|>\n",
            "Hello</s>",
            "<|user|>\nMore?</s><|assistant|>\n",
            "No</s>",
        ],
        [
            "<|system|>\nBe brief.</s><|user|>\nHi</s><|assistant|>\n",
            "Hello</s>",
            "<|user|>\nMore?</s><|assistant|>\n",
            "No</s>",
        ],
    ),
    "openchat": (
        [
            "<s>GPT4 Correct User: Hi</s>GPT4 Correct Assistant:",
            "Hello</s>",
            "GPT4 Correct User: More?</s>GPT4 Correct Assistant:",
            "No</s>",
        ],
        [
            "<s>Be brief.GPT4 Correct User: Hi</s>GPT4 Correct Assistant:",
            "Hello</s>",
            "GPT4 Correct User: More?</s>GPT4 Correct Assistant:",
            "No</s>",
        ],
    ),
    "solar": (
        [
            "### User:\nHi\n\n### Assistant:\n",
            "Hello",
            "### User:\nMore?\n\n### Assistant:\n",
            "No</s>",
        ],
        [
            "### System:\nBe brief.\n\n### User:\nHi\n\n### Assistant:\n",
            "Hello",
            "### User:\nMore?\n\n### Assistant:\n",
            "No</s>",
        ],
    ),
    "human": (
        [
            "Human: Hi</s>\nAssistant:",
            "Hello</s>\n",
            "Human: More?</s>\nAssistant:",
            "No</s>",
        ],
        [
            "System: Be brief.</s>\nHuman: Hi</s>\nAssistant:",
            "Hello</s>\n",
            "Human: More?</s>\nAssistant:",
            "No</s>",
        ],
    ),
    "deepseek": (
        ["<s>User: Hi\n\nAssistant:", "Hello</s>", "User: More?\n\nAssistant:", "No</s>"],
        [
            "<s>Be brief.\n\nUser: Hi\n\nAssistant:",
            "Hello</s>",
            "User: More?\n\nAssistant:",
            "No</s>",
        ],
    ),
    "gemma": (
        [
            "<s><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n",
            "Hello<end_of_turn>\n",
            "<start_of_turn>user\nMore?<end_of_turn>\n<start_of_turn>model\n",
            "No<end_of_turn>\n",
        ],
        None,
    ),
    "llama3": (
        [
            "<s><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
            "Hello<|eot_id|>",
            "<|start_header_id|>user<|end_header_id|>\n\nMore?<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
            "No<|eot_id|>",
        ],
        None,
    ),
}
# Styles of models whose tokenizers put a blank before each text that is encoded by itself.
OF_LLAMA = ("vicuna", "llama2")
CASES = [
    (name, with_system)
    for name, theirs in THEIRS.items()
    for with_system in (False, True)
    if theirs[with_system]  # others have no system text, or another one: conf/template/README.md
]
OURS = [name for name in THEIRS if name not in ("gemma", "llama3")]
MARKS = ["<s>", "</s>", "<end_of_turn>", "<start_of_turn>", "<|eot_id|>"]

# The words of Llama 3's tokenizer and of Qwen's: line ends stay together, whatever follows them.
WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def new_tokenizer(of_llama):
    """A tokenizer of bytes, or one that puts blanks before texts as that of Llama does."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    if of_llama:
        core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
        core.decoder = decoders.Metaspace(prepend_scheme="always")
    else:
        core.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        core.decoder = decoders.ByteLevel()
    texts = [text for pieces, _ in THEIRS.values() for text in pieces] + [
        VICUNA,
        "<<SYS>> Be brief.",
    ]
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=MARKS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>")


@pytest.fixture(scope="module")
def tokenizers():
    return {of_llama: new_tokenizer(of_llama) for of_llama in (True, False)}


def encode_apart(tokenizer, pieces):
    """The tokens of pieces that are encoded one by one, as LLaMA-Factory does."""
    tokens = []
    for piece in pieces:
        tokens += tokenizer(piece, add_special_tokens=False)["input_ids"]
    return tokens


def written(tokenizer, name, turns, **options):
    return tokenizer.apply_chat_template(
        turns, chat_template=read_template(name), tokenize=False, **options
    )


@pytest.mark.parametrize(("name", "with_system"), CASES)
def test_a_style_is_theirs_token_by_token(tokenizers, name, with_system):
    tokenizer = tokenizers[name in OF_LLAMA]
    pieces = THEIRS[name][with_system]
    turns = [SYSTEM, *TURNS] if with_system else TURNS
    text = written(tokenizer, name, turns)
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.unk_token_id not in tokens
    assert tokens == encode_apart(tokenizer, pieces)


@pytest.mark.parametrize("name", OURS)
def test_the_answers_alone_are_trained_and_end(tokenizers, name):
    tokenizer = tokenizers[name in OF_LLAMA]
    encoded = tokenizer.apply_chat_template(
        TURNS,
        chat_template=read_template(name),
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    pairs = zip(encoded["input_ids"], encoded["assistant_masks"], strict=True)
    trained = tokenizer.decode([token for token, is_trained in pairs if is_trained])
    assert trained.replace(" ", "").endswith("No</s>")
    assert "Hello" in trained
    assert "Hi" not in trained
    assert "More" not in trained


@pytest.mark.parametrize("name", OURS)
def test_what_is_asked_is_the_beginning_of_what_is_trained(tokenizers, name):
    tokenizer = tokenizers[name in OF_LLAMA]
    whole = written(tokenizer, name, TURNS[:2])
    asked = written(tokenizer, name, TURNS[:1], add_generation_prompt=True)
    assert whole.startswith(asked)
    assert whole.removeprefix(asked).strip() == "Hello</s>"


@pytest.mark.parametrize("name", OURS)
def test_a_tokenizer_without_a_start_token_will_do(name):
    faults = find_template_faults(
        read_template(name), name, "</s>", {"eos_token": "</s>"}, chosen=True
    )
    assert faults == []


# --- Rows of instruction, input and output --------------------------------------------------------


def test_rows_of_stanford_get_the_prompt_with_and_without_an_input(tokenizers, tmp_path):
    rows = [
        {"instruction": "Do it", "input": "", "output": "Done"},
        {"instruction": "Do it", "input": "Some text", "output": "Done"},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    loaded, _ = load_rows(
        str(path), to="demonstration", shuffle=False, context_separator="\n\n### Input:\n"
    )
    texts = [
        written(tokenizers[False], "alpaca", row["prompt"] + row["completion"]).rstrip()
        for row in loaded
    ]
    question = "### Instruction:\nDo it\n\n"
    answer = "### Response:\nDone</s>"
    # Axolotl's, of which the tokenizer puts its start token in front.
    assert texts == [
        f"<s>{ALPACA}{question}{answer}",
        f"<s>{ALPACA_WITH_INPUT}{question}### Input:\nSome text\n\n{answer}",
    ]


def test_a_context_stands_below_an_empty_line_unless_the_separator_says_otherwise(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"instruction": "Do it", "input": "Text", "output": "Done"}))
    contents = []
    for separator in (None, "\n", "\\n## "):  # a shell passes the last one
        rows, _ = load_rows(str(path), to="demonstration", context_separator=separator)
        contents.append(rows[0]["prompt"][0]["content"])
    assert contents == ["Do it\n\nText", "Do it\nText", "Do it\n## Text"]


# --- Files of other tools -------------------------------------------------------------------------


@pytest.fixture
def read(tmp_path):
    """The draft of a file with these keys."""

    def call(keys, dataset_info=None):
        path = tmp_path / "theirs.yaml"
        path.write_text(yaml.safe_dump(keys))
        if dataset_info:
            (tmp_path / "dataset_info.json").write_text(json.dumps(dataset_info))
        return translate(read_file(path), "theirs")

    return call


def of_axolotl(*types, **keys):
    datasets = [{"path": f"c/{number}", "type": name} for number, name in enumerate(types)]
    return {"base_model": "a/b", "micro_batch_size": 2, "datasets": datasets, **keys}


@pytest.mark.parametrize("name", ["alpaca", "alpaca_instruct.load", "gpteacher"])
def test_axolotl_writes_rows_of_a_type_in_the_style_alpaca(read, name):
    draft = read(of_axolotl(name))
    assert draft.choices["template"] == "alpaca"
    assert draft.values["dataset"]["context_separator"] == "\n\n### Input:\n"
    assert draft.values["dataset"]["form"] == "prompt_completion"
    # Answers alone are trained, as completions are.
    assert "completion_only_loss" not in draft.values.get("trainer", {}).get("args", {})


def test_the_style_of_the_rows_counts_and_not_the_template_that_is_kept(read):
    draft = read(of_axolotl("alpaca", chat_template="qwen_25"))
    assert draft.choices["template"] == "alpaca"
    assert "tokenizer" not in draft.values["model"] or not draft.values["model"]["tokenizer"]
    notes = [note for note in draft.notes if note.key == "chat_template"]
    assert [note.kind for note in notes] == ["no equivalent"]


@pytest.mark.parametrize("types", [("alpaca", "chat_template"), ("alpaca_chat.load",)])
def test_rows_of_several_styles_or_of_another_one_are_listed(read, types):
    draft = read(of_axolotl(*types))
    assert "template" not in draft.choices
    assert any("words around an alpaca row" in note.why for note in draft.notes)


@pytest.mark.parametrize(
    ("name", "option"), [("alpaca", "alpaca"), ("vicuna", "vicuna"), ("default", "human")]
)
def test_llama_factory_chooses_a_style_by_name(read, name, option):
    keys = {"stage": "sft", "model_name_or_path": "a/b", "dataset": "mine", "template": name}
    draft = read(keys, {"mine": {"file_name": "rows.json"}})
    assert draft.choices["template"] == option
    # A line end stands between an instruction and its input there.
    assert draft.values["dataset"]["context_separator"] == "\n"

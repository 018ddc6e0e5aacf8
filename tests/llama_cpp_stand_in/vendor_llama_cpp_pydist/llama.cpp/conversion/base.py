"""The two classes of llama.cpp's converter that are extended; it knows no tokenizer."""

import json
from pathlib import Path


class ModelBase:
    @staticmethod
    def load_hparams(folder: Path, is_mistral_format: bool):
        return json.loads((folder / "config.json").read_text())


class TextModel(ModelBase):
    def get_vocab_base_pre(self, tokenizer):
        raise NotImplementedError("BPE pre-tokenizer was not recognized")

"""The reader of the stand-in's files, which can change an entry."""

import json
from pathlib import Path


class Keys:
    class Tokenizer:
        ADD_BOS = "adds_bos"


class GGUFReader:
    def __init__(self, path: str, mode: str):
        assert mode == "r+"
        self.path = Path(path)

    def get_field(self, key: str):
        return Field(self.path, key)


class Field:
    """An entry, the first value of whose only part can be set."""

    data = (0,)

    def __init__(self, path: Path, key: str):
        self.path = path
        self.key = key
        self.parts = [self]

    def __setitem__(self, place: int, value: bool) -> None:
        assert place == 0
        entries = json.loads(self.path.read_text())
        self.path.write_text(json.dumps(entries | {self.key: value}))

"""The language server that editors use for YAML reads the schemas of conf/ as we mean them.

    npm install --prefix FOLDER yaml-language-server
    python tests/fault/editors.py FOLDER

It opens each file of conf/, in which it must find nothing; each faulty file of
tests/test_editor.py, in which it must find something; and asks for the keys that it completes.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from test_editor import DPO, FAULTY, FILES, GOOD

from runner.command._editor_schemas import LINE
from runner.io.files import MENU

SERVER = "node_modules/yaml-language-server/bin/yaml-language-server"
SETTINGS = {"validate": True, "hover": True, "completion": True, "schemaStore": {"enable": False}}


class Editor:
    """An editor that opens files and asks its server, one question after the other."""

    def __init__(self, folder: Path) -> None:
        words = ["node", str(folder / SERVER), "--stdio"]
        self.server = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.numbers = count(1)
        document = {"completion": {"completionItem": {"documentationFormat": ["markdown"]}}}
        able = {"textDocument": document, "workspace": {"configuration": True}}
        self.ask("initialize", processId=None, rootUri=None, capabilities=able)
        self.send(method="initialized", params={})

    def send(self, **message: Any) -> None:
        text = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self.server.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(text), text))
        self.server.stdin.flush()

    def read(self) -> Iterator[dict[str, Any]]:
        """The messages of the server; its questions for settings are answered."""
        while True:
            length = 0
            while (line := self.server.stdout.readline()) != b"\r\n":
                name, _, value = line.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
            message = json.loads(self.server.stdout.read(length))
            if "id" in message and "method" in message:
                items = message.get("params", {}).get("items", [])
                settings = [SETTINGS if item.get("section") == "yaml" else {} for item in items]
                self.send(id=message["id"], result=settings)
            else:
                yield message

    def ask(self, method: str, **params: Any) -> Any:
        number = next(self.numbers)
        self.send(id=number, method=method, params=params)
        return next(message["result"] for message in self.read() if message.get("id") == number)

    def open(self, path: Path) -> list[str]:
        """What the server says of a file."""
        address = path.resolve().as_uri()
        item = {"uri": address, "languageId": "yaml", "version": 1, "text": path.read_text()}
        self.send(method="textDocument/didOpen", params={"textDocument": item})
        for message in self.read():
            params = message.get("params", {})
            if params.get("uri") == address and "diagnostics" in params:
                return [entry["message"] for entry in params["diagnostics"]]

    def complete(self, path: Path, line: int, column: int) -> dict[str, str]:
        """The words that are offered at a place, with their descriptions."""
        place = {"line": line, "character": column}
        document = {"uri": path.resolve().as_uri()}
        answer = self.ask("textDocument/completion", textDocument=document, position=place)
        return {item["label"]: str(item.get("documentation", "")) for item in answer["items"]}


def main(folder: Path) -> None:
    editor = Editor(folder)
    wrong = {path: said for path in FILES if (said := editor.open(path))}
    assert not wrong, wrong
    print(f"conf/: nothing found in {len(FILES)} files")

    with tempfile.TemporaryDirectory(dir=MENU.parent) as name:
        head = f"# @package _global_\n{LINE}{MENU / '.schema' / 'experiment.json'}\n"
        missed = []
        for text in (*FAULTY, *GOOD):
            path = Path(name, "faulty.yaml" if text in FAULTY else "good.yaml")
            path = path.with_stem(f"{path.stem}-{len(list(Path(name).iterdir()))}")
            path.write_text(head + text + "\n")
            if bool(editor.open(path)) != (text in FAULTY):
                missed.append(text)
        assert not missed, missed
        print(f"a mistake found in each of {len(FAULTY)} files, nothing in {len(GOOD)} good ones")

        path = Path(name, "open.yaml")
        path.write_text(f"{head}{DPO}trainer:\n  args:\n    beta: 0.1\n    \n")
        assert editor.open(path) == []
        offered = editor.complete(path, 6, 4)
        assert {"ld_alpha", "max_steps", "learning_rate"} <= offered.keys()
        assert "assistant_only_loss" not in offered
        assert "learning rate" in offered["learning_rate"]
        print(f"{len(offered)} fields of DPO offered, {sum(map(bool, offered.values()))} described")
    editor.server.kill()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

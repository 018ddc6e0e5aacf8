"""Exports for llama.cpp, Ollama and vLLM, each compared with what transformers does.

    python tests/fault/gguf.py                        every family of the menu
    python tests/fault/gguf.py gemma3 pythia          some
    python tests/fault/gguf.py --tokenizers FOLDER    also with real tokenizers in its folders, such
                                                      as FOLDER/qwen3/tokenizer.json
    python tests/fault/gguf.py --vllm PYTHON          a Python with vLLM loads the other export too
    python tests/fault/gguf.py --vllm PYTHON --torchao FOLDER    and that in FP8; torchao alone lies
                                                                 in the folder

It needs the extra ``gguf`` and the package xllamacpp, which is llama.cpp's server as a library.
With ``go`` on PATH, the templates of Ollama are rendered by the library of Go that Ollama uses;
with ``llama-quantize``, a file of type q4_k_m is tried, too. A model is a random one of a few
layers. Prints a line for each case; the exit code is 1 where one fails.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS.parent), str(TESTS)]

import llama_cpp
from llama_cpp import FAMILIES, differences, family_model, family_tokenizer, lay_trained

from runner.__main__ import main as run_command
from runner.model import jinja

REAL = {"qwen3": "qwen3", "llama3_1": "llama3", "gemma3": "gemma3"}  # the family of a tokenizer
GO = """
package main

import (
	"encoding/json"
	"os"
	"strings"
	"text/template"
)

type Message struct{ Role, Content string }
type Case struct {
	Template string
	Messages []Message
}

func main() {
	var cases []Case
	json.NewDecoder(os.Stdin).Decode(&cases)
	texts := []string{}
	for _, c := range cases {
		system := ""
		messages := []*Message{}
		for i := range c.Messages {
			messages = append(messages, &c.Messages[i])
			if c.Messages[i].Role == "system" {
				system = c.Messages[i].Content
			}
		}
		var text strings.Builder
		parsed, err := template.New("").Option("missingkey=zero").Parse(c.Template)
		if err == nil {
			err = parsed.Execute(&text, map[string]any{"System": system, "Messages": messages})
		}
		if err != nil {
			text.WriteString(err.Error())
		}
		texts = append(texts, text.String())
	}
	json.NewEncoder(os.Stdout).Encode(texts)
}
"""
IN_VLLM = """
import json, sys
from vllm import LLM, SamplingParams

if __name__ == "__main__":
    folder, ids = sys.argv[1], json.loads(sys.argv[2])
    model = LLM(folder, enforce_eager=True, max_model_len=256, dtype="float32")
    settings = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    answer = model.generate([{"prompt_token_ids": ids}], settings)[0].outputs[0]
    print("ANSWER", json.dumps(list(answer.token_ids)))
"""


class Table:
    """Cases with what went wrong in them, printed as they come."""

    def __init__(self):
        self.failed = 0
        self.passed = 0

    def note(self, case: str, faults: list[str]) -> None:
        self.failed += bool(faults)
        self.passed += not faults
        print(f"{case:<32} {'; '.join(faults) or 'the same'}", flush=True)


def check_family(
    name: str, folder: Path, table: Table, tokenizer: Path | None, vllm: str, torchao: str
) -> None:
    """Export a model of a family in each type, and compare; with the tokenizer of a folder."""
    title = f"{name}, real tokenizer" if tokenizer else name
    model = family_model(name, folder / "model", tokenizer)
    plain = shutil.copytree(model, folder / "plain")
    run = lay_trained(folder / "outputs" / name / "run", model)
    for dtype in ("f32", "f16", "bf16", "q8_0", "q4_k_m"):
        if dtype == "q4_k_m" and not shutil.which("llama-quantize"):
            continue
        if run_command(["export", str(run), "format=gguf", f"dtype={dtype}"]):
            table.note(f"{title}, {dtype}", ["it was refused"])
            continue
        weights = run / "export-gguf" / f"{name}-{dtype}.gguf"
        table.note(f"{title}, {dtype}", differences(plain, weights, exact=dtype == "f32"))
    if vllm:
        run_command(["export", str(run)])
        table.note(f"{title}, vLLM", ask_vllm(vllm, run / "export", ""))
    if vllm and torchao:
        run_command(["export", str(run), "format=fp8", "dtype=float32"])
        table.note(f"{title}, FP8 in vLLM", ask_vllm(vllm, run / "export-fp8", torchao))


def ask_vllm(python: str, folder: Path, packages: str) -> list[str]:
    """The way in which vLLM answers otherwise than transformers, if it does.

    It finds ``packages``, a folder, too.
    """
    import torch
    from transformers import AutoModelForCausalLM

    ids = list(range(300, 312))
    script = folder.parent / "ask_vllm.py"
    script.write_text(IN_VLLM)
    done = subprocess.run(
        [python, script, folder, json.dumps(ids)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": packages, "VLLM_CPU_KVCACHE_SPACE": "1"},
        check=False,
    )
    answers = [line for line in done.stdout.splitlines() if line.startswith("ANSWER")]
    if not answers:
        return [f"it did not load: {done.stderr.strip().splitlines()[-1:]}"]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    given = torch.tensor([ids])
    expected = model.generate(
        given,
        attention_mask=torch.ones_like(given),
        max_new_tokens=20,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )[0, len(ids) :].tolist()
    answer = json.loads(answers[0].removeprefix("ANSWER"))
    return [] if answer == expected else [f"{answer[:8]}, not {expected[:8]}"]


def check_templates(folder: Path, table: Table) -> None:
    """Render the templates of Ollama for all chat templates of ours and of TRL with Go."""
    from runner.model import modelfile

    tokenizer = family_tokenizer("llama3")
    templates = {name: jinja.read_template(name) for name in jinja.template_names()}
    for name, file in jinja.family_files().items():
        templates[f"TRL's {name}"] = file.read_text("utf-8")
    for name in ("gemma3", "llama3"):
        templates[f"the family {name}"] = FAMILIES[name].template
    asked = []
    lost = []
    for name, text in templates.items():
        tokenizer.chat_template = text
        write = partial(modelfile._write, tokenizer)
        form = modelfile.read_form(write)
        if form is None:
            lost.append(name)
            continue
        conversations = [modelfile.QUESTIONS[:1], modelfile.LONG]
        if form.system:
            conversations += [[modelfile.SYSTEM, *turns] for turns in conversations]
        for turns in conversations:
            asked.append((name, modelfile.to_go(form, ""), turns, write(turns, True)))
    (folder / "main.go").write_text(GO)
    cases = [{"Template": template, "Messages": turns} for _, template, turns, _ in asked]
    done = subprocess.run(
        ["go", "run", "main.go"],
        cwd=folder,
        input=json.dumps(cases),
        text=True,
        capture_output=True,
        check=True,
    )
    wrong = {
        name
        for (name, _, _, expected), text in zip(asked, json.loads(done.stdout), strict=True)
        if text != expected
    }
    table.note(f"{len(asked)} conversations in Go", sorted(wrong))
    print(f"{len(templates) - len(lost)} of {len(templates)} templates; not {', '.join(lost)}")


def main(words: list[str]) -> int:
    """Compare, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizers", type=Path)
    parser.add_argument("--vllm", default="")
    parser.add_argument("--torchao", default="")
    parser.add_argument("families", nargs="*")
    asked = parser.parse_args(words)
    if llama_cpp.LACKING:
        print(f"not installed: {', '.join(llama_cpp.LACKING)}")
        return 1
    if asked.torchao:
        sys.path.append(asked.torchao)
    table = Table()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name in asked.families or FAMILIES:
            check_family(name, folder / name, table, None, asked.vllm, asked.torchao)
        for name, family in REAL.items():
            if asked.tokenizers and (asked.tokenizers / name).is_dir():
                place = folder / f"real-{name}"
                check_family(family, place, table, asked.tokenizers / name, "", "")
        if shutil.which("go"):
            check_templates(folder, table)
    print(f"{table.passed} the same, {table.failed} not")
    return int(table.failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

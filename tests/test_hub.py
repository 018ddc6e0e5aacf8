"""The loopback hub against the real client libraries: what they ask it and make of the answers.

Each case is a process that prints one JSON value, because the libraries read their endpoint when
they are imported. What imports the large ones is forked from one that has.
"""

import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hub import STRANGER, TOKEN, USER, Hub, list_tree, to_blob
from tiny import CHATML, MODELS, ROWS, rows_of, tiny_model, trained_tokenizer

Ask = Callable[..., object]


@pytest.fixture
def small_hub() -> Hub:
    """A hub of this test's own, whose log nobody else writes."""
    with Hub() as hub:
        yield hub


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    """Run Python against a hub and return the JSON that it prints last."""

    def run(hub: Hub, code: str, token: str | None = None, **kwargs: str) -> object:
        environment = hub.environment(tmp_path / "home", token) | {"OMP_NUM_THREADS": "1"} | kwargs
        done = subprocess.run(
            [sys.executable, "-c", f"import json\n{code}"],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


def run_code(words: list[str]) -> None:
    exec(words[0], {})


@pytest.fixture
def ask_forked(online_runner) -> Ask:
    """The same of the hub that all tests share; ``offline`` as with HF_HUB_OFFLINE=1."""
    online_runner.forget_cache()

    def run(code: str, offline: bool = False) -> object:
        words = [f"import json\n{code}"]
        if offline:
            done = online_runner("test_hub:run_code", *words, door="hub:offline")
        else:
            done = online_runner(*words, door="test_hub:run_code")
        return json.loads(done.stdout.splitlines()[-1])

    return run


LOAD_MODELS = """
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
shapes = {}
for path in ("EleutherAI/pythia-1b-deduped", "Qwen/Qwen2.5-0.5B-Instruct"):
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path)
    batch = tokenizer("Anna saw a dog. 把数字", return_tensors="pt")
    logits = model(**batch).logits
    shapes[path] = {
        "finite": bool(torch.isfinite(logits).all()),
        "dtype": str(model.dtype),
        "float32": str(AutoModelForCausalLM.from_pretrained(path, dtype="float32").dtype),
        "width": logits.shape[-1],
        "tokens": len(tokenizer),
        "round": tokenizer.decode(batch["input_ids"][0]),
        "pad": tokenizer.pad_token,
        "eos": tokenizer.eos_token,
        "template": tokenizer.chat_template,
    }
print(json.dumps(shapes))
"""


@pytest.mark.slow
def test_models_load_run_and_load_again_offline(hub: Hub, ask_forked: Ask) -> None:
    online = ask_forked(LOAD_MODELS)
    pythia = online["EleutherAI/pythia-1b-deduped"]
    qwen = online["Qwen/Qwen2.5-0.5B-Instruct"]
    assert pythia["finite"]
    assert qwen["finite"]
    assert (pythia["dtype"], qwen["dtype"]) == ("torch.float16", "torch.bfloat16")
    assert pythia["float32"] == qwen["float32"] == "torch.float32"
    assert pythia["tokens"] < pythia["width"] < 600
    assert pythia["round"] == qwen["round"] == "Anna saw a dog. 把数字"
    assert (pythia["eos"], pythia["pad"], pythia["template"]) == ("<|endoftext|>", None, None)
    assert (qwen["eos"], qwen["pad"], qwen["template"]) == ("<|im_end|>", "<|endoftext|>", CHATML)

    requests_before = len(hub.requests)
    assert ask_forked(LOAD_MODELS, offline=True) == online
    assert len(hub.requests) == requests_before


@pytest.mark.slow
def test_a_revision_has_its_own_files(small_hub: Hub, ask: Ask) -> None:
    pinned = "0123456789abcdef0123456789abcdef01234567"
    main = small_hub.add_files("model", "some/model", {"config.json": b"main"})
    small_hub.add_files("model", "some/model", {"config.json": b"early"}, revision="step/1000")
    small_hub.add_files("model", "some/model", {"config.json": b"pinned"}, revision=pinned)
    answers = ask(
        small_hub,
        f"""
from huggingface_hub import HfApi
from huggingface_hub.errors import RevisionNotFoundError
read = lambda name: open(HfApi().hf_hub_download("some/model", "config.json", revision=name)).read()
names = (None, "step/1000", "{pinned}", "{main}")
try:
    read("step/2000")
except RevisionNotFoundError as error:
    missing = error.response.status_code
info = HfApi().model_info("some/model", revision="step/1000", files_metadata=True)
print(json.dumps([[read(name) for name in names], missing, info.siblings[0].size]))
""",
    )
    assert answers == [["main", "early", "pinned", "main"], 404, len("early")]


REFUSED = """
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import HfHubHTTPError
found = {}
for name in ("no/such", "closed/model", "shy/model", "open/model"):
    for file in ("config.json", "nothing.json"):
        try:
            found[f"{name}/{file}"] = open(hf_hub_download(name, file)).read()
        except HfHubHTTPError as error:
            found[f"{name}/{file}"] = f"{type(error).__name__} {error.response.status_code}"
print(json.dumps(found))
"""


def expected_answers(absent: str, gated: str, private: str, present: str) -> dict[str, str]:
    """The expected output of ``REFUSED``.

    Nothing.json is missing from every repository that can be read.
    """
    answers = {
        "no/such": absent,
        "closed/model": gated,
        "shy/model": private,
        "open/model": present,
    }
    missing = "RemoteEntryNotFoundError 404"
    answer_of_file = {}
    for name, text in answers.items():
        answer_of_file[f"{name}/config.json"] = text
        answer_of_file[f"{name}/nothing.json"] = missing if text == "{}" else text
    return answer_of_file


@pytest.mark.slow
@pytest.mark.parametrize(
    ("token", "absent", "gated", "private"),
    [
        (None, "RepositoryNotFoundError 401", "GatedRepoError 401", "RepositoryNotFoundError 401"),
        (
            STRANGER,
            "RepositoryNotFoundError 404",
            "GatedRepoError 403",
            "RepositoryNotFoundError 404",
        ),
        (TOKEN, "RepositoryNotFoundError 404", "{}", "{}"),
    ],
)
def test_access_to_each_repository_is_checked(
    small_hub: Hub, ask: Ask, token: str | None, absent: str, gated: str, private: str
) -> None:
    small_hub.add_files("model", "closed/model", {"config.json": b"{}"}, gated=True)
    small_hub.add_files("model", "shy/model", {"config.json": b"{}"}, private=True)
    small_hub.add_files("model", "open/model", {"config.json": b"{}"})
    assert ask(small_hub, REFUSED, token) == expected_answers(absent, gated, private, "{}")
    assert {request.token for request in small_hub.requests} == {token}


@pytest.mark.slow
def test_a_wrong_token_is_reported(small_hub: Hub, ask: Ask) -> None:
    small_hub.add_files("model", "open/model", {"config.json": b"{}"})
    answer = ask(
        small_hub,
        """
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError
try:
    HfApi().model_info("open/model")
except HfHubHTTPError as error:
    print(json.dumps([type(error).__name__, error.response.headers["X-Error-Message"]]))
""",
        token="hf_of_yesterday",
    )
    assert answer == ["HfHubHTTPError", "Invalid credentials in Authorization header"]


@pytest.mark.slow
def test_trees_come_in_pages_and_files_in_ranges(small_hub: Hub, ask: Ask) -> None:
    small_hub.page_size = 2
    files = {f"deep/{name}/{name}.bin": name.encode() * 9 for name in "abcde"}
    small_hub.add_files("model", "some/model", files | {"top.txt": b"top"})
    listed, entry, part, folder = ask(
        small_hub,
        """
from huggingface_hub import HfApi, HfFileSystem, RepoFile, snapshot_download
entries = HfApi().list_repo_tree("some/model", recursive=True, expand=True)
listed = sorted(entry.path for entry in entries if isinstance(entry, RepoFile))
entry = HfApi().get_paths_info("some/model", ["top.txt", "no.txt"], expand=True)
with HfFileSystem().open("some/model/deep/a/a.bin", block_size=4) as file:
    file.seek(2)
    part = file.read(3).decode()
folder = HfFileSystem().ls("some/model/deep", detail=False)
snapshot_download("some/model")
print(json.dumps([listed, [one.last_commit.title for one in entry], part, folder]))
""",
    )
    assert listed == sorted([*files, "top.txt"])
    assert entry == ["made for a test"]
    assert part == "aaa"
    assert folder == [f"some/model/deep/{name}" for name in "abcde"]
    ranges = [
        request.headers.get("range") for request in small_hub.requests if request.status == 206
    ]
    assert ranges
    for text in ranges:
        assert text.startswith("bytes=")
    assert small_hub.counters["tree"] > 6


LOAD_ROWS = """
from datasets import load_dataset
tldr = load_dataset("trl-lib/tldr", split="train[:500]")
style = "trl-internal-testing/descriptiveness-sentiment-trl-style"
found = {
    "tldr": [len(tldr), tldr.column_names, tldr[499]],
    "validation": len(load_dataset("trl-lib/tldr", split="validation[:100]")),
    "style": load_dataset(style, split="descriptiveness[:2]")[1],
    "splits": sorted(load_dataset(style)),
    "feedback": load_dataset("trl-lib/ultrafeedback_binarized", split="test")[0],
    "firefly": load_dataset("YeungNLP/firefly-train-1.1M", split="train")[7],
    "gsm8k": load_dataset("openai/gsm8k", "main", split="train")[0],
    "socratic": load_dataset("openai/gsm8k", "socratic", split="test[-1:]")[0],
}
print(json.dumps(found))
"""


@pytest.mark.slow
def test_rows_load_with_slices_and_configs_and_again_offline(hub: Hub, ask_forked: Ask) -> None:
    tldr = rows_of("trl-lib/tldr")["default"]
    gsm8k = rows_of("openai/gsm8k")
    style = rows_of("trl-internal-testing/descriptiveness-sentiment-trl-style")["default"]
    expected = {
        "tldr": [500, ["prompt", "completion"], tldr["train"][499]],
        "validation": 100,
        "style": style["descriptiveness"][1],
        "splits": ["descriptiveness", "sentiment"],
        "feedback": rows_of("trl-lib/ultrafeedback_binarized")["default"]["test"][0],
        "firefly": rows_of("YeungNLP/firefly-train-1.1M")["default"]["train"][7],
        "gsm8k": gsm8k["main"]["train"][0],
        "socratic": gsm8k["socratic"]["test"][-1],
    }
    assert ask_forked(LOAD_ROWS) == expected

    requests_before = len(hub.requests)
    assert ask_forked(LOAD_ROWS, offline=True) == expected
    assert len(hub.requests) == requests_before


@pytest.mark.slow
def test_rows_stream_and_faults_have_the_libraries_own_errors(small_hub: Hub, ask: Ask) -> None:
    mixed = [{"steps": ["a", "b"], "labels": [True, False], "meta": {"deep": [[1, 2]]}}]
    small_hub.add_dataset("some/rows", {"default": {"train": mixed}})
    small_hub.add_dataset("some/configs", {"one": {"train": mixed}, "two": {"train": mixed}})
    answers = ask(
        small_hub,
        """
from datasets import load_dataset
def fault(*args, **kwargs):
    try:
        load_dataset(*args, **kwargs)
    except Exception as error:
        return type(error).__name__
streamed = load_dataset("some/rows", split="train", streaming=True)
print(json.dumps({
    "rows": list(streamed),
    "columns": streamed.column_names,
    "again": load_dataset("some/rows", split="train")[0],
    "missing": fault("no/such"),
    "revision": fault("some/rows", revision="old"),
    "split": fault("some/rows", split="test"),
    "config": fault("some/configs"),
}))
""",
    )
    assert answers == {
        "rows": mixed,
        "columns": ["steps", "labels", "meta"],
        "again": mixed[0],
        "missing": "DatasetNotFoundError",
        "revision": "DatasetNotFoundError",
        "split": "ValueError",
        "config": "ValueError",
    }


PUSH = """
from huggingface_hub import HfApi
api = HfApi()
made = api.create_repo("mine", private=True)
api.create_repo("mine", private=True, exist_ok=True)
push = lambda: api.upload_folder(repo_id=made.repo_id, folder_path="model", ignore_patterns="*.log")
first, second = push().oid, push().oid
back = open(api.hf_hub_download(made.repo_id, "model.safetensors"), "rb").read().decode()
api.delete_file("config.json", made.repo_id)
left = api.list_repo_files(made.repo_id)
print(json.dumps([made.repo_id, api.whoami()["name"], first == second, back, left]))
"""


@pytest.mark.slow
def test_a_private_push_arrives_once_and_whole(small_hub: Hub, ask: Ask, tmp_path: Path) -> None:
    files = {"config.json": b"{}", "model.safetensors": b"weights", "README.md": b"---\n---\nhi"}
    for path, content in (files | {"train.log": b"noise"}).items():
        (tmp_path / "model").mkdir(exist_ok=True)
        (tmp_path / "model" / path).write_bytes(content)
    name, user, same, back, remaining = ask(small_hub, PUSH, token=TOKEN)
    assert (name, user, same, back) == (f"{USER}/mine", USER, True, "weights")
    assert remaining == ["README.md", "model.safetensors"]

    pushed, deleted = small_hub.uploads
    assert (pushed.repo_id, pushed.private, pushed.revision) == (name, True, "main")
    assert pushed.files == files
    assert deleted.files == {}
    assert small_hub.repo(name).private
    assert small_hub.repo(name).files() == {path: files[path] for path in remaining}


@pytest.mark.slow
def test_only_the_owner_may_push_and_the_default_is_public(small_hub: Hub, ask: Ask) -> None:
    code = """
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError
try:
    HfApi().create_repo("theirs/model")
    print(json.dumps("made"))
except HfHubHTTPError as error:
    print(json.dumps(error.response.status_code))
"""
    assert ask(small_hub, code) == 401
    assert ask(small_hub, code, token=STRANGER) == 403
    assert small_hub.repos == {}
    assert ask(small_hub, code, token=TOKEN) == "made"
    assert small_hub.repo("theirs/model").private is False


@pytest.mark.grid(3)
@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["gpt2", "gpt_neox", "llama", "qwen2"])
@pytest.mark.parametrize("head", ["lm", "score"])
def test_tiny_models_are_small_and_repeatable(tmp_path: Path, architecture: str, head: str) -> None:
    first = tiny_model(tmp_path / "a", architecture, head)
    trained_tokenizer.cache_clear()
    again = tiny_model(tmp_path / "b", architecture, head)
    of_another_seed = tiny_model(tmp_path / "c", architecture, head, seed=1)
    weights = [
        (folder / "model.safetensors").read_bytes() for folder in (first, again, of_another_seed)
    ]
    assert len(weights[0]) < 4 * 200_000
    assert weights[0] == weights[1] != weights[2]
    assert (first / "tokenizer.json").read_bytes() == (again / "tokenizer.json").read_bytes()
    wanted = "ForSequenceClassification" if head == "score" else "LM"
    assert wanted in json.loads((first / "config.json").read_text())["architectures"][0]


@pytest.mark.slow
def test_everything_is_up_under_its_real_name(hub: Hub) -> None:
    assert {name for kind, name in hub.repos if kind == "model"} >= set(MODELS)
    assert {name for kind, name in hub.repos if kind == "dataset"} >= set(ROWS)
    card = hub.repo("openai/gsm8k", "dataset").files()["README.md"].decode()
    assert "path: socratic/test-*" in card
    assert "num_examples: 220" in card


def test_no_row_is_in_two_splits() -> None:
    for repo_id in ROWS:
        for splits in rows_of(repo_id).values():
            rows = [json.dumps(row) for row in itertools.chain(*splits.values())]
            assert len(rows) == len(set(rows)), repo_id


@pytest.mark.slow
def test_an_unknown_route_is_refused_and_counted(small_hub: Hub, ask: Ask) -> None:
    code = """
from huggingface_hub import get_session
from huggingface_hub.constants import ENDPOINT
print(json.dumps(get_session().get(f"{ENDPOINT}/parquet?dataset=a/b").status_code))
"""
    assert ask(small_hub, code) == 404
    assert small_hub.counters["unknown"] == 1
    assert small_hub.requests[-1].query == {"dataset": ["a/b"]}
    small_hub.forget()
    assert not small_hub.requests
    assert not small_hub.counters


def test_a_tree_of_one_folder_leaves_its_neighbours_out() -> None:
    blobs = {path: to_blob(path, b"x") for path in ("a/b/c.txt", "a/d.bin", "ab/e.txt", "f.txt")}
    assert [entry["path"] for entry in list_tree(blobs, "a", recursive=False)] == ["a/b", "a/d.bin"]
    kinds = {entry["path"]: entry["type"] for entry in list_tree(blobs, "", recursive=True)}
    assert kinds["a"] == kinds["a/b"] == "directory"
    assert kinds["a/b/c.txt"] == "file"
    assert list_tree(blobs, "none", recursive=False) == []

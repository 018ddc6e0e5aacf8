async def connect_mcp(config, stack):
    return [], {}, {}


async def call_mcp(connections, names, name, arguments):
    raise LookupError(name)

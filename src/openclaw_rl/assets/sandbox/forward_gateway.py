"""Runs inside a box: listens on a port of the box and passes connections on to the gateway's socket.

Arguments: socket, port. It returns once it listens, and continues in the background.
"""

import asyncio
import os
import socket
import sys


async def copy_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.write_eof()


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        gateway_reader, gateway_writer = await asyncio.open_unix_connection(sys.argv[1])
        await asyncio.gather(
            copy_stream(reader, gateway_writer), copy_stream(gateway_reader, writer)
        )
        gateway_writer.close()
    except OSError:
        # One side has closed.
        pass
    finally:
        writer.close()


async def serve_port(listener: socket.socket) -> None:
    server = await asyncio.start_server(pass_on, sock=listener)
    await server.serve_forever()


listener = socket.create_server(("127.0.0.1", int(sys.argv[2])))
if os.fork():
    os._exit(0)
os.setsid()
nothing = os.open("/dev/null", os.O_RDWR)
for number in (0, 1, 2):
    os.dup2(nothing, number)
asyncio.run(serve_port(listener))

"""A TCP proxy: what stands for the network between two tasks. SIGSTOP cuts the cable without closing a connection.

  python proxy.py --listen 4000 --to 127.0.0.1:5000
"""
import argparse
import asyncio


async def forward(reader, writer):
    try:
        while data := await reader.read(1 << 20):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def serve(port, host, to):
    async def connected(reader, writer):
        try:
            far_reader, far_writer = await asyncio.open_connection(host, to)
        except OSError:
            writer.close()
            return
        await asyncio.gather(forward(reader, far_writer), forward(far_reader, writer))
    server = await asyncio.start_server(connected, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--listen", type=int, required=True)
    p.add_argument("--to", required=True)
    options = p.parse_args()
    asyncio.run(serve(options.listen, options.to.rsplit(":", 1)[0], int(options.to.rsplit(":", 1)[1])))

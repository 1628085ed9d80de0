"""A real client library, nats-py: what it makes of the server's answers."""

import asyncio

import nats
from nats.errors import TimeoutError as NatsTimeout
from nats.js.api import AckPolicy, ConsumerConfig, StreamConfig
from nats.js.errors import APIError, NotFoundError

from harness import case


def run(t, body):
    async def main():
        host, port = t.addresses[0]
        nc = await nats.connect(f"nats://{host}:{port}", allow_reconnect=False, connect_timeout=5)
        try:
            await body(nc, nc.jetstream(timeout=5))
        finally:
            await nc.close()

    asyncio.run(main())


async def add_stream(t, js, name, **config):
    t.streams.append(name)
    info = await js.add_stream(StreamConfig(name=name, subjects=[f"{name}.>"], num_replicas=t.replicas, **config))
    t.await_stream({"subjects": [f"{name}.>"]})
    return info


@case("sdk/publish-and-fetch")
def _(t):
    async def body(nc, js):
        info = await add_stream(t, js, "PY1")
        t.log(f"created {info.config.name}, {info.config.retention}, {info.config.storage}")
        for n in range(10):
            ack = await js.publish(f"PY1.{n % 2}", f"m{n}".encode(), headers={"N": str(n)})
            t.log(f"ack {ack.stream} {ack.seq} {ack.duplicate}")
        sub = await js.pull_subscribe("PY1.0", durable="D")
        t.await_consumer({"stream_name": "PY1", "name": "D"})
        for message in await sub.fetch(5, timeout=3):
            t.log(f"{message.subject} {message.data} {message.headers} seq {message.metadata.sequence.stream} pending {message.metadata.num_pending}")
            await message.ack_sync()
        try:
            await sub.fetch(1, timeout=0.5)
        except NatsTimeout:
            t.log("fetch timed out")
        info = await js.consumer_info("PY1", "D")
        t.log(f"floor {info.ack_floor.stream_seq}, pending {info.num_pending}, unacked {info.num_ack_pending}")

    run(t, body)


@case("sdk/errors")
def _(t):
    async def body(nc, js):
        for call in (
            js.stream_info("NOSUCH"), js.consumer_info("NOSUCH", "C"), js.publish("NOSUCH.x", b"x"), js.delete_stream("NOSUCH"), js.get_msg("NOSUCH", 1),
        ):
            try:
                await call
                t.log("no error")
            except (APIError, NotFoundError) as error:
                t.log(f"{type(error).__name__} {error.code} {error.err_code} {error.description}")
            except Exception as error:
                t.log(f"{type(error).__name__} {error}")
        await add_stream(t, js, "PY2")
        try:
            await js.publish("PY2.x", b"x", headers={"Nats-Expected-Last-Sequence": "7"})
        except APIError as error:
            t.log(f"{type(error).__name__} {error.code} {error.err_code} {error.description}")

    run(t, body)


@case("sdk/messages")
def _(t):
    async def body(nc, js):
        await add_stream(t, js, "PY3", allow_direct=True)
        for n in range(5):
            await js.publish("PY3.x", f"m{n}".encode())
        await asyncio.sleep(0.5)
        for direct in (False, True):
            message = await js.get_msg("PY3", 3, direct=direct)
            t.log(f"{message.subject} {message.seq} {message.data}")
        message = await js.get_last_msg("PY3", "PY3.x")
        t.log(f"last {message.seq}")
        t.log(f"deleted {await js.delete_msg('PY3', 3)}")
        await js.purge_stream("PY3", keep=1)
        info = await js.stream_info("PY3")
        t.log(f"after purge {info.state.messages} {info.state.first_seq} {info.state.last_seq}")

    run(t, body)


@case("sdk/naks-and-ephemeral")
def _(t):
    async def body(nc, js):
        await add_stream(t, js, "PY4")
        for n in range(3):
            await js.publish("PY4.x", f"m{n}".encode())
        sub = await js.pull_subscribe("PY4.>", config=ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, ack_wait=5))
        t.await_consumer({"stream_name": "PY4", "name": (await sub.consumer_info()).name})
        first = (await sub.fetch(1, timeout=3))[0]
        await first.nak()
        messages = []
        while len(messages) < 3:
            messages += await sub.fetch(3 - len(messages), timeout=3)
        t.log(f"{sorted((m.metadata.sequence.stream, m.metadata.num_delivered) for m in messages)}")
        await messages[0].term()
        await messages[1].in_progress()
        for message in messages[1:]:
            await message.ack_sync()
        info = await sub.consumer_info()
        t.log(f"unacked {info.num_ack_pending}, delivered {info.delivered.stream_seq}")

    run(t, body)


@case("sdk/request-reply")
def _(t):
    async def body(nc, js):
        async def serve(message):
            await message.respond(b"re " + message.data)

        await nc.subscribe("py.svc", queue="q", cb=serve)
        await nc.flush()
        t.log((await nc.request("py.svc", b"hello", timeout=3)).data.decode())
        try:
            await nc.request("py.nobody", b"", timeout=3)
        except Exception as error:
            t.log(f"{type(error).__name__}")

    run(t, body)


@case("sdk/account-info")
def _(t):
    async def body(nc, js):
        info = await js.account_info()
        t.log(f"limits {info.limits.max_memory} {info.limits.max_storage} {info.limits.max_streams} {info.limits.max_consumers}")

    run(t, body)

"""nats-py against a cluster: publish, fetch, acks, gets, over all three nodes. Exits non-zero if anything is off."""

import asyncio
import sys

import nats
from nats.js.api import ConsumerConfig, StreamConfig


async def main(urls):
    nc = await nats.connect(servers=urls.split(","), connect_timeout=5)
    js = nc.jetstream(timeout=10)
    await js.add_stream(StreamConfig(name="SMOKE", subjects=["smoke.>"], num_replicas=3, allow_direct=True))
    acks = await asyncio.gather(*(js.publish(f"smoke.{n % 4}", f"m{n}".encode(), headers={"Nats-Msg-Id": str(n)}) for n in range(200)))
    assert sorted(ack.seq for ack in acks) == list(range(1, 201)), "sequences"
    again = await js.publish("smoke.0", b"again", headers={"Nats-Msg-Id": "7"})
    assert again.duplicate and again.seq == acks[7].seq, f"a known id: {again}"

    sub = await js.pull_subscribe("smoke.>", durable="D", config=ConsumerConfig(ack_wait=30))
    seen = []
    while len(seen) < 200:
        for message in await sub.fetch(50, timeout=5):
            seen.append(message.metadata.sequence.stream)
            await message.ack_sync()
    assert seen == list(range(1, 201)), "deliveries in order"
    info = await js.consumer_info("SMOKE", "D")
    assert (info.num_pending, info.num_ack_pending) == (0, 0), info

    for url in urls.split(","):
        one = await nats.connect(url, allow_reconnect=False)
        message = await one.jetstream(timeout=10).get_msg("SMOKE", 42, direct=True)
        expected = next(f"m{n}".encode() for n, ack in enumerate(acks) if ack.seq == 42)
        assert message.data == expected, f"{url}: {message.data}"
        await one.close()
    await js.purge_stream("SMOKE", keep=10)
    state = (await js.stream_info("SMOKE")).state
    assert (state.messages, state.first_seq, state.last_seq) == (10, 191, 200), state
    await js.delete_stream("SMOKE")
    await nc.close()
    print("nats-py: published, fetched, acknowledged, read from every node, purged, deleted")


asyncio.run(main(sys.argv[1]))

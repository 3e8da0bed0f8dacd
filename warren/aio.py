"""Warren for asyncio: the same queues, awaited; thousands of tasks wait without a thread each.

    import asyncio
    import warren.aio

    async def main():
        async with warren.aio.open("data") as node:
            orders = await node.queue("orders")
            await orders.put(b"one")                        # returns when it is on stable storage
            async with orders.consume(prefetch=10) as messages:
                async for message in messages:
                    await message.ack()

    asyncio.run(main())

`warren.aio.attach` only attaches. See docs/python.md.
"""

from warren.workers.faces.aio import (
    Confirm,
    Consumer,
    Half,
    HalfMessage,
    Message,
    Node,
    Position,
    Queue,
    QueueEmpty,
    QueueFull,
    Reader,
    ReadResult,
    ReadStatus,
    Record,
    ShutDown,
    Store,
    Subscription,
    Topic,
    Worker,
    WorkQueue,
    attach,
    open,
)

__all__ = [
    "open",
    "attach",
    "Node",
    "Queue",
    "Message",
    "Consumer",
    "Confirm",
    "Subscription",
    "WorkQueue",
    "Worker",
    "Store",
    "Topic",
    "Position",
    "Record",
    "Half",
    "HalfMessage",
    "Reader",
    "ReadResult",
    "ReadStatus",
    "QueueEmpty",
    "QueueFull",
    "ShutDown",
]

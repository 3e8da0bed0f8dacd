"""A service in asyncio: 500 orders, 100 at a time, each in a task of its own, with one fsync for all that wait.
Run it: python docs/examples/asyncio_service.py (it makes a node in ./examples-data)"""

import asyncio

import warren.aio

ORDERS, AT_A_TIME = 500, 100


async def main() -> None:
    async with warren.aio.open("examples-data") as node:
        orders = await node.queue("orders")
        invoices = await node.queue("invoices")
        busy: set[bytes] = set()
        most = 0

        async def bill(message: warren.aio.Message) -> None:
            nonlocal most
            busy.add(message.message_id)
            most = max(most, len(busy))
            await asyncio.sleep(0.01)  # the call of another service
            await invoices.put(b"invoice of " + message.body)
            busy.discard(message.message_id)

        service = await node.worker(orders, bill, concurrency=AT_A_TIME)
        running = asyncio.create_task(service.run())  # as a program: await service.run(), until SIGTERM or Ctrl-C

        await asyncio.gather(*(orders.put(b"order %d" % number) for number in range(ORDERS)))
        billed = 0
        async with invoices.consume(timeout=60) as messages:
            async for message in messages:
                await message.ack()
                billed += 1
                if billed == ORDERS:
                    break
        service.stop()
        await running  # what is in hand is finished first
        print(f"invoices: {billed}, handled: {service.counts['handled']}, at most 100 at a time: {most <= AT_A_TIME}")


asyncio.run(main())

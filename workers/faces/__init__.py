"""What a program holds: node, queues, subscriptions, work queues, the store; blocking, and for asyncio."""

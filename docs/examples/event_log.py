"""An event log that two services read, one of which was away; a look-up by key, and a replay into a queue.
Run it: python docs/examples/event_log.py (it makes a node in ./examples-data)"""

import warren

Event = tuple[str, str, int]  # of whom, what, for how much
MONDAY: list[Event] = [("ada", "paid", 30), ("grace", "paid", 12), ("ada", "cancelled", 30)]
TUESDAY: list[Event] = [("alan", "paid", 7), ("ada", "paid", 5)]


def write(events: warren.Topic, day: list[Event]) -> None:
    """Events of one key stay in order. All are on the disk when this returns."""
    names, tags, amounts = zip(*day, strict=True)
    events.append_many([b"%d" % amount for amount in amounts], keys=names, tags=tags)


def run(events: warren.Topic, service: str) -> None:
    """One run of a service, as from cron: what its group has not handled yet."""
    handled = 0
    with events.reader(group=service, commit="manual") as reader:
        while batch := reader.get_many(timeout=1):
            handled += len(batch)  # a real one works here
            reader.commit()  # killed before this, it gets the batch again
    print(f"{service} handled {handled}")


def main() -> None:
    with warren.open("examples-data") as node:
        events = node.topic("events", queues=2)
        write(events, MONDAY)
        run(events, "billing")
        run(events, "mails")

        write(events, TUESDAY)
        run(events, "billing")
        print("lag:", {group["name"]: group["lag"] for group in events.groups()})  # mails is away
        run(events, "mails")

        newest = events.find("ada", limit=2)  # the newest first
        print("ada:", [(record.tag, int(record.body)) for record in newest])

        audit = node.queue("audit")  # a queue of work, filled from the log
        done = events.replay(audit, start="earliest", tags="paid")
        messages = audit.get_many(done.messages, timeout=60)
        total = sum(int(message.body) for message in messages)
        audit.ack(messages)
        print(f"audit: {done.messages} paid, {total} in all, the first of {messages[0].headers['x-topic']['keys']}")
        events.delete()  # a real log stays, or has a retention
        audit.delete()


if __name__ == "__main__":
    main()

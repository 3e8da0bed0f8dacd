"""Retries with backoff, and dead letters for what fails for good: a server that is down at first, and a bad address.
Run it: python docs/examples/retries.py (it makes a node in ./examples-data)"""

import threading
import time

import warren

MAILS = [b"ann@here.org", b"bob@slow.org", b"nobody", b"carl@here.org"]


def send(message: warren.Message) -> None:
    if b"@" not in message.body:
        raise ValueError("this is no address")
    if message.body.endswith(b"@slow.org") and message.delivery_count < 2:
        raise ConnectionError("the server does not answer")
    print("sent to", message.body.decode())


def main() -> None:
    with warren.open("examples-data") as node:
        failed = node.queue("mails-failed")
        mails = node.queue("mails", dead_letter_exchange="", dead_letter_routing_key=failed.name)
        mails.put_many(MAILS)

        # Tried again after 0.05, 0.1 and 0.2 s, at its old place; then rejected. Each failure is logged.
        worker = node.worker(mails, send, retries=3, backoff=0.05)
        thread = threading.Thread(target=worker.run)  # in a program of its own: worker.run(), until SIGTERM
        thread.start()
        while worker.counts["handled"] + worker.counts["rejected"] < len(MAILS):
            time.sleep(0.05)
        worker.stop()
        thread.join()

        with failed.get(timeout=60) as letter:  # acked at the end of the block
            death = letter.headers["x-death"][0]
            print(f"dead letter: {letter.body.decode()!r}, {death['reason']} in queue {death['queue']!r}")
        print(", ".join(f"{what}: {count}" for what, count in worker.counts.items()))


if __name__ == "__main__":
    main()

"""A pool of four processes squares 200 numbers. One of them is killed at work, and every number is squared, once.
Run it: python docs/examples/worker_pool.py (it makes a node in ./examples-data)"""

import multiprocessing

import warren

NUMBERS, PROCESSES = 200, 4


def work(directory: str) -> None:
    with warren.attach(directory) as node:
        squares = node.queue("squares", create=False)

        def square(message: warren.Message) -> None:
            # What a killed process had in hand comes again, with the same id: a second square of it is dropped.
            squares.put(b"%d" % int(message.body) ** 2, message_id=message.message_id)

        node.worker("numbers", square).run()  # until SIGTERM; then it finishes what it has in hand


def main() -> None:
    context = multiprocessing.get_context("spawn")
    with warren.open("examples-data") as node:
        numbers = node.queue("numbers")
        squares = node.queue("squares", deduplication_window=3600)
        pool = [context.Process(target=work, args=("examples-data",)) for _number in range(PROCESSES)]
        for process in pool:
            process.start()
        numbers.put_many([b"%d" % number for number in range(NUMBERS)])

        found: list[int] = []
        for message in squares.consume(timeout=60):
            found.append(int(message.body))
            message.ack()
            if len(found) == 1:
                pool[0].kill()
            if len(found) == NUMBERS:
                break
        for process in pool:
            process.terminate()
        for process in pool:
            process.join()
        print(f"squares: {len(found)}, different ones: {len(set(found))}, sum: {sum(found)}")


if __name__ == "__main__":
    main()

"""Calls with answers: two processes serve prices, this one asks 100 times, and once for what nobody sells.
Run it: python docs/examples/rpc.py (it makes a node in ./examples-data)"""

import multiprocessing

import warren

PRICES = {b"gold": 42, b"silver": 7, b"copper": 1}


def price(message: warren.Message) -> bytes:
    return b"%d" % PRICES[message.body]  # a KeyError here is a CallFailed there


def serve(directory: str) -> None:
    with warren.attach(directory) as node:
        node.serve("prices", price).run()  # until SIGTERM


def main() -> None:
    context = multiprocessing.get_context("spawn")
    with warren.open("examples-data") as node:
        node.queue("prices")
        servers = [context.Process(target=serve, args=("examples-data",)) for _number in range(2)]
        for server in servers:
            server.start()

        metals = list(PRICES)
        answers = [node.call("prices", metals[number % 3], timeout=60.0) for number in range(100)]
        print(f"answers: {len(answers)}, sum of the prices: {sum(map(int, answers))}")
        try:
            node.call("prices", b"lead", timeout=60.0)
        except warren.CallFailed as error:
            print(error)

        for server in servers:
            server.terminate()
        for server in servers:
            server.join()


if __name__ == "__main__":
    main()

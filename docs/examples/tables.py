"""Tables between processes: Arrow streams as messages, read as pandas frames; and a queue read as one Arrow table.
Run it: python docs/examples/tables.py (it makes a node in ./examples-data, and needs pandas)"""

import multiprocessing

import pandas as pd
import pyarrow as pa

import warren

DAYS, FLIGHTS = 5, 1000
ARROW = "application/vnd.apache.arrow.stream"


def produce(directory: str) -> None:
    with warren.attach(directory) as node:
        tables = node.queue("tables", create=False)
        for day in range(DAYS):
            table = pa.table({"day": [day] * FLIGHTS, "delay": range(FLIGHTS)})
            stream = pa.BufferOutputStream()
            with pa.ipc.new_stream(stream, table.schema) as writer:
                writer.write_table(table)
            tables.put(memoryview(stream.getvalue()), properties={"content_type": ARROW})


def main() -> None:
    with warren.open("examples-data") as node:
        tables = node.queue("tables")
        producer = multiprocessing.get_context("spawn").Process(target=produce, args=("examples-data",))
        producer.start()
        frames: list[pd.DataFrame] = []
        while len(frames) < DAYS:
            with tables.get(timeout=60) as message, pa.ipc.open_stream(message.view()) as reader:
                frames.append(reader.read_pandas())  # polars: pl.from_arrow(reader.read_all())
        producer.join()
        delays = pd.concat(frames).groupby("day")["delay"].agg(["count", "mean"])
        print(f"tables: {len(frames)}, rows: {delays['count'].sum()}, mean delay: {delays['mean'].mean()}")

        # Small messages become a table without a Python object for each. Browsing leaves them in the queue.
        flights = node.queue("flights")
        flights.put_many([b'{"delay": %d}' % delay for delay in range(FLIGHTS)], headers={"origin": "JFK"})
        table = pa.Table.from_batches(flights.browse_arrow())
        print(f"browsed: {table.num_rows} rows, {table.num_columns} columns; still in the queue: {flights.depth()}")
        flights.purge()


if __name__ == "__main__":
    main()

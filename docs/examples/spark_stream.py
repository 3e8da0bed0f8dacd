"""A Spark stream over a queue: it totals 300 orders by shop, and puts the totals into another queue.
Run it: python docs/examples/spark_stream.py (it makes a node in ./examples-data, and needs Java: docs/spark.md)"""

from pyspark.sql import DataFrame, functions

import warren
import warren.spark

ORDERS, SHOPS = 300, 3


def put_totals(changed: DataFrame, _batch: int) -> None:
    """The totals that a micro-batch changed; a batch that is repeated puts them again."""
    rows = changed.selectExpr("to_json(struct(*)) as value")
    rows.write.format("warren").option("path", "examples-data").option("queue", "totals").mode("append").save()


with warren.open("examples-data") as node, warren.spark.session("shops") as spark:
    orders, totals = node.queue("orders"), node.queue("totals")
    orders.put_many([b'{"shop": %d, "items": %d}' % (number % SHOPS, number) for number in range(ORDERS)])

    stream = spark.readStream.format("warren").option("path", "examples-data").option("queue", "orders").load()
    order = functions.from_json(stream["value"].cast("string"), "shop int, items int")
    by_shop = (
        stream.select(order.alias("order"))
        .groupBy("order.shop")
        .agg(functions.count("*").alias("orders"), functions.sum("order.items").alias("items"))
    )
    query = (
        by_shop.writeStream.outputMode("update")
        .foreachBatch(put_totals)
        .option("checkpointLocation", "checkpoint")  # where a killed driver goes on
        .trigger(availableNow=True)  # what is there now; without it the stream waits for more
        .start()
    )
    query.awaitTermination()

    for message in sorted(totals.get_many(100, timeout=60), key=lambda message: message.body):
        print(message.body.decode())
        message.ack()
    print(f"orders left: {orders.depth()}")

"""A Spark stream over a topic: 3,000 readings of 5 sensors, as hourly means, exactly once; again, only what is new.
Run it: python docs/examples/spark_topics.py (it makes a node in ./examples-data, and needs Java: docs/spark.md)"""

import json

from pyspark.sql import functions

import warren
import warren.spark

SENSORS, MEASUREMENTS = 5, 3000

with warren.open("examples-data") as node, warren.spark.session("sensors") as spark:
    readings = node.topic("readings", queues=2)
    before = sum(readings.offsets(queue)[1] for queue in range(readings.queues))
    readings.append_many(
        [json.dumps({"minute": n, "degrees": n % 30}).encode() for n in range(MEASUREMENTS)],
        keys=[f"sensor-{n % SENSORS}" for n in range(MEASUREMENTS)],
    )

    stream = (
        spark.readStream.format("warren")
        .options(path="examples-data", subscribe="readings", startingOffsets="earliest", groupId="means")
        .option("maxOffsetsPerTrigger", "1000")
        .load()
    )
    measured = functions.from_json(stream["value"].cast("string"), "minute int, degrees int")
    query = (
        stream.select(stream["key"].cast("string").alias("sensor"), measured.alias("measured"), "partition", "offset")
        .select("sensor", "measured.*", "partition", "offset")
        .writeStream.format("parquet")
        .option("path", "readings.parquet")
        .option("checkpointLocation", "checkpoint")  # where the next run, and a killed driver, goes on
        .trigger(availableNow=True)  # what is there now; without it the stream waits for more
        .start()
    )
    query.awaitTermination()

    rows = spark.read.parquet("readings.parquet")
    once = rows.dropDuplicates(["partition", "offset"]).count()
    print(f"{rows.count()} of {before + MEASUREMENTS} rows, {once} of them once")
    print(f"lag of the group: {readings.group('means')['lag']}")
    means = rows.groupBy("sensor").agg(functions.avg("degrees").alias("mean")).sort("sensor")
    for row in means.collect():
        print(row["sensor"], round(row["mean"], 2))

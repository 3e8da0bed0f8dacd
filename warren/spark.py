"""Warren for Spark: `warren.spark.register(spark)` adds `format("warren")` to a session, for reading and writing.

    import warren.spark
    warren.spark.register(spark)
    stream = spark.readStream.format("warren").option("path", "data").option("queue", "orders").load()
    frame.write.format("warren").option("path", "data").option("queue", "results").mode("append").save()

See docs/spark.md for options, rows and guarantees. Importing this module does not import PySpark.
"""

from warren.workers.spark.java import JavaMissing, check_java
from warren.workers.spark.session import register, session

__all__ = ["register", "session", "check_java", "JavaMissing"]

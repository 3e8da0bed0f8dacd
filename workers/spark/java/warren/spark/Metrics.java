package warren.spark;

import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomSumMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;

/** What a scan counts beside its rows, which Spark counts. */
final class Metrics {
    private Metrics() {}

    /** Bytes of consume queues and log that were read. */
    public static final class BytesRead extends CustomSumMetric {
        static final String NAME = "bytesRead";

        @Override
        public String name() {
            return NAME;
        }

        @Override
        public String description() {
            return "bytes read";
        }
    }

    /** Offsets that gave no row: filtered, gone, or without a message. */
    public static final class Skipped extends CustomSumMetric {
        static final String NAME = "offsetsSkipped";

        @Override
        public String name() {
            return NAME;
        }

        @Override
        public String description() {
            return "offsets passed by: filtered, gone, or without a message";
        }
    }

    static CustomMetric[] all() {
        return new CustomMetric[] {new BytesRead(), new Skipped()};
    }

    static CustomTaskMetric[] values(long bytes, long skipped) {
        return new CustomTaskMetric[] {new Value(BytesRead.NAME, bytes), new Value(Skipped.NAME, skipped)};
    }

    private static final class Value implements CustomTaskMetric {
        private final String name;
        private final long value;

        Value(String name, long value) {
            this.name = name;
            this.value = value;
        }

        @Override
        public String name() {
            return name;
        }

        @Override
        public long value() {
            return value;
        }
    }
}

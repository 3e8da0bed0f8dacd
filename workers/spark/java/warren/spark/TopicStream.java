package warren.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadAllAvailable;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.ReadMaxBytes;
import org.apache.spark.sql.connector.read.streaming.ReadMaxRows;
import org.apache.spark.sql.connector.read.streaming.ReadMinRows;
import org.apache.spark.sql.connector.read.streaming.ReportsSourceMetrics;
import org.apache.spark.sql.connector.read.streaming.SupportsAdmissionControl;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;
import org.apache.spark.sql.types.StructType;

/** A stream of topics: each call is a question to Python's stream reader, whose offsets these are. */
final class TopicStream
        implements MicroBatchStream, SupportsAdmissionControl, SupportsTriggerAvailableNow, ReportsSourceMetrics {
    private final Planner planner;
    private final long reader;
    private final Map<String, String> options;
    private final StructType wanted;

    TopicStream(Planner planner, Map<String, String> options, StructType schema, StructType wanted) {
        this.planner = planner;
        this.options = options;
        this.wanted = wanted;
        this.reader = planner.open(options, schema.json(), "stream");
    }

    private static final class TextOffset extends Offset {
        private final String json;

        TextOffset(String json) {
            this.json = json;
        }

        @Override
        public String json() {
            return json;
        }
    }

    private static Offset offset(JsonNode answer) {
        return answer.isNull() ? null : new TextOffset(answer.textValue());
    }

    @Override
    public Offset initialOffset() {
        return offset(planner.ofStream(reader, "initial", null));
    }

    @Override
    public Offset deserializeOffset(String json) {
        return new TextOffset(json);
    }

    @Override
    public ReadLimit getDefaultReadLimit() {
        JsonNode limit = planner.ofStream(reader, "limit", null);
        long most = limit.required("most").longValue();
        switch (limit.required("limit").textValue()) {
            case "max_rows":
                return ReadLimit.maxRows(most);
            case "min_rows":
                return ReadLimit.minRows(most, Long.MAX_VALUE);
            case "max_bytes":
                return ReadLimit.maxBytes(most);
            default:
                return ReadLimit.allAvailable();
        }
    }

    @Override
    public Offset latestOffset(Offset start, ReadLimit limit) {
        if (limit instanceof ReadMaxRows) {
            return latest(start, "max_rows", ((ReadMaxRows) limit).maxRows());
        }
        if (limit instanceof ReadMinRows) {
            return latest(start, "min_rows", ((ReadMinRows) limit).minRows());
        }
        if (limit instanceof ReadMaxBytes) {
            return latest(start, "max_bytes", ((ReadMaxBytes) limit).maxBytes());
        }
        if (limit instanceof ReadAllAvailable) {
            return latest(start, "all", 0);
        }
        throw new IllegalArgumentException("Warren has no such limit of a micro-batch: " + limit);
    }

    private Offset latest(Offset start, String limit, long most) {
        return offset(planner.latest(reader, start.json(), limit, most));
    }

    @Override
    public Offset latestOffset() {
        throw new UnsupportedOperationException("Spark asks with a limit");
    }

    @Override
    public Offset reportLatestOffset() {
        return offset(planner.ofStream(reader, "report", null));
    }

    @Override
    public void prepareForTriggerAvailableNow() {
        planner.ofStream(reader, "available_now", null);
    }

    @Override
    public InputPartition[] planInputPartitions(Offset start, Offset end) {
        return planner.partitions(reader, options, start.json(), end.json());
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
        return new TopicScan.Factory(wanted, null);
    }

    @Override
    public void commit(Offset end) {
        planner.ofStream(reader, "commit", end.json());
    }

    @Override
    public Map<String, String> metrics(Optional<Offset> consumed) {
        Map<String, String> metrics = new HashMap<>();
        if (consumed.isPresent()) {
            planner.ofStream(reader, "metrics", consumed.get().json())
                    .properties()
                    .forEach(metric -> metrics.put(metric.getKey(), metric.getValue().asText()));
        }
        return metrics;
    }

    @Override
    public String toString() {
        return "Warren, native scan of " + options.getOrDefault("path", "");
    }

    @Override
    public void stop() {
        planner.stop(reader);
    }
}

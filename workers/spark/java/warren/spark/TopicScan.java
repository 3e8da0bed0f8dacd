package warren.spark;

import java.io.IOException;
import java.io.ObjectOutputStream;
import java.util.Objects;
import java.util.stream.Stream;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownFilters;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructType;

/** One read of a table: its columns, and of a batch what its filters leave. */
final class TopicScan implements Scan, Batch {
    private final TopicTable table;
    private final StructType wanted;
    private final Pushed pushed;

    private TopicScan(TopicTable table, StructType wanted, Pushed pushed) {
        this.table = table;
        this.wanted = wanted;
        this.pushed = pushed;
    }

    /** Made anew for each query, so what is pushed is that query's alone. */
    static final class Builder implements ScanBuilder, SupportsPushDownRequiredColumns, SupportsPushDownFilters {
        private final TopicTable table;
        private StructType wanted;
        private Pushed pushed = new Pushed(new Filter[0]);

        Builder(TopicTable table, StructType schema) {
            this.table = table;
            this.wanted = schema;
        }

        @Override
        public void pruneColumns(StructType required) {
            this.wanted = required;
        }

        /** Spark applies all of them again: here they only save reading. */
        @Override
        public Filter[] pushFilters(Filter[] filters) {
            pushed = new Pushed(filters);
            return filters;
        }

        @Override
        public Filter[] pushedFilters() {
            return pushed.used();
        }

        @Override
        public Scan build() {
            return new TopicScan(table, wanted, pushed);
        }
    }

    @Override
    public StructType readSchema() {
        return wanted;
    }

    @Override
    public String description() {
        return table.name() + pushed;
    }

    @Override
    public CustomMetric[] supportedCustomMetrics() {
        return Metrics.all();
    }

    @Override
    public Batch toBatch() {
        return this;
    }

    @Override
    public MicroBatchStream toMicroBatchStream(String checkpoint) {
        return table.stream(wanted);
    }

    @Override
    public InputPartition[] planInputPartitions() {
        return Stream.of(table.ranges()).map(pushed::narrow).filter(Objects::nonNull).toArray(InputPartition[]::new);
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
        return new Factory(wanted, table);
    }

    /** Sent to the tasks: of a batch, it says so. */
    static final class Factory implements PartitionReaderFactory {
        private static final long serialVersionUID = 1L;
        private final StructType wanted;
        /** Where the batch is planned; elsewhere, and of a stream: null. */
        private final transient TopicTable table;

        Factory(StructType wanted, TopicTable table) {
            this.wanted = wanted;
            this.table = table;
        }

        private void writeObject(ObjectOutputStream to) throws IOException {
            if (table != null) {
                table.sent();
            }
            to.defaultWriteObject();
        }

        @Override
        public PartitionReader<InternalRow> createReader(InputPartition partition) {
            return new RangeReader((Range) partition, wanted);
        }
    }
}

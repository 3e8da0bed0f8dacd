package warren.spark;

import java.util.EnumSet;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * What `load()` gives: topics, with the options of the read. Planned once, at the first action: later ones on the same
 * frame read the same messages.
 */
final class TopicTable implements SupportsRead {
    private final Map<String, String> options;
    private final StructType schema;
    private final String[] command = WarrenSource.command();
    private final Leases leases = Leases.of(SparkSession.active().sparkContext());
    private volatile Lease lease;

    TopicTable(Map<String, String> options, StructType schema) {
        this.options = options;
        this.schema = schema;
    }

    @Override
    public String name() {
        return "warren " + options.getOrDefault("path", "");
    }

    @Override
    @SuppressWarnings("deprecation") // a table says its columns by this or by another method, which calls this one
    public StructType schema() {
        return schema;
    }

    @Override
    public Set<TableCapability> capabilities() {
        return EnumSet.of(TableCapability.BATCH_READ, TableCapability.MICRO_BATCH_READ);
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap more) {
        return new TopicScan.Builder(this, schema);
    }

    /** What is read, which is held from now on for whom this thread plans. */
    synchronized Range[] ranges() {
        if (lease == null) {
            lease = plan();
        }
        lease.planned();
        return lease.ranges;
    }

    private Lease plan() {
        Planner planner = Planner.of(command);
        long reader = planner.open(options, schema.json(), "batch");
        try {
            Range[] ranges = planner.partitions(reader, options, null, null);
            return new Lease(leases, options, command, ranges, planner, reader);
        } catch (ReadError problem) {
            planner.stop(reader);
            throw problem;
        }
    }

    /** The tasks of a stage are being made, which read this. */
    void sent() {
        Lease one = lease;
        if (one != null) {
            one.sent();
        }
    }

    TopicStream stream(StructType wanted) {
        return new TopicStream(Planner.of(command), options, schema, wanted);
    }
}

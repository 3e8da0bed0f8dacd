package warren.spark;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.types.StructType;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Reads a range of a queue of a topic from its files, each message checked against its unit, its place and its body's
 * checksum.
 *
 * <p>What does not check out is looked at once more, in files that are opened anew, since it may have changed or gone
 * meanwhile. If it does not check out then either, Python's reader is asked for that message: it knows what retention
 * has taken, and says in its own words what is lost or damaged. So a range is never short without a word.
 *
 * <p>The body of a message is summed where its bytes are asked for; everything else is checked always.
 */
final class RangeReader implements PartitionReader<InternalRow> {
    private static final Logger LOG = LoggerFactory.getLogger(RangeReader.class);
    /** What lies between two records is read with them, if it is no more: a system call takes as long. */
    private static final int GAP_BYTES = 4096;
    private static final int RECORD_BYTES_MIN = 64;
    /** A larger record is read when its head says so, too: sizes of units are not believed. */
    private static final int SURE_BYTES = 1 << 20;

    private final Range range;
    private final Units units;
    private final Log log;
    private final Record record;
    private final RecordRow row;
    private final boolean sum;
    private final byte[][] tags;
    private final long[] tagsCodes;
    private final byte[][] keys;
    /** The next offset. */
    private long at;
    private long end;
    private long skipped;

    RangeReader(Range range, StructType schema) {
        this.range = range;
        Path folder = range.folder();
        this.units = new Units(
                folder.resolve("consumequeue").resolve(range.topic).resolve(Integer.toString(range.queue)),
                range.consumeQueueEntries);
        this.log = new Log(folder.resolve("commitlog"), range.logFileBytes);
        this.record = new Record(range.topic.getBytes(StandardCharsets.UTF_8), range.id, range.queue);
        this.row = new RecordRow(record, range, schema);
        this.sum = RecordRow.has(schema, "value");
        this.tags = bytesOf(range.tags);
        this.keys = bytesOf(range.keys);
        this.tagsCodes = new long[tags == null ? 0 : tags.length];
        for (int i = 0; i < tagsCodes.length; i++) {
            tagsCodes[i] = range.tags[i].hashCode();
        }
        this.at = range.start;
        this.end = range.end;
    }

    private static byte[][] bytesOf(String[] texts) {
        byte[][] all = texts == null ? null : new byte[texts.length][];
        for (int i = 0; all != null && i < all.length; i++) {
            all[i] = texts[i].getBytes(StandardCharsets.UTF_8);
        }
        return all;
    }

    @Override
    public boolean next() throws IOException {
        while (at < end) {
            if (!units.have(at, end)) {
                trouble("no entry in its consume queue");
                continue;
            }
            int size = units.size(at);
            if (size == Units.EMPTY || (tags != null && size != 0 && !mayMatch(units.tagsCode(at)))) {
                at++;
                skipped++;
                continue;
            }
            String wrong = look(size, units.position(at));
            if (wrong != null) {
                trouble(wrong);
                continue;
            }
            at++;
            if (matches()) {
                return true;
            }
            skipped++;
        }
        return false;
    }

    /** Look at the record that the unit at hand leads to: what is wrong with it, or null. */
    private String look(int size, long position) throws IOException {
        int place = log.at(position, size);
        if (place < 0 || size < RECORD_BYTES_MIN) {
            if (size < RECORD_BYTES_MIN || position < 0 || size > log.left(position)) {
                return size == 0 ? "zeros" : "a unit that leads nowhere";
            }
            if (size > SURE_BYTES && !(log.load(position, 8, 8) && (int) Bytes.INT.get(log.bytes, 0) == size)) {
                return "another size";
            }
            if (!log.load(position, wanted(position, size), size)) {
                return "no bytes";
            }
            place = 0;
        }
        return record.look(log.bytes, place, size, position, at, sum);
    }

    /** Bytes of the log from a record on that this range wants next: of records that lie close to each other. */
    private int wanted(long position, int size) {
        long behind = position + size;
        long most = position + Math.min(Log.WINDOW_BYTES, log.left(position));
        int left = units.atHand(at, end);
        for (int i = 1; i < left; i++) {
            int next = units.size(at + i);
            long where = units.position(at + i);
            if (next == Units.EMPTY || next <= 0) {
                continue;
            }
            if (where < behind || where - behind > GAP_BYTES || where + next > most) {
                break;
            }
            behind = where + next;
        }
        return (int) (behind - position);
    }

    private boolean mayMatch(long code) {
        for (long wanted : tagsCodes) {
            if (wanted == code) {
                return true;
            }
        }
        return false;
    }

    private boolean matches() {
        if (record.storeTimestamp < range.since || record.storeTimestamp >= range.until) {
            return false;
        }
        return (tags == null || any(tags, true)) && (keys == null || any(keys, false));
    }

    private boolean any(byte[][] wanted, boolean tag) {
        for (byte[] one : wanted) {
            if (tag ? record.hasTag(one) : record.hasKey(one)) {
                return true;
            }
        }
        return false;
    }

    /** The message at hand is not what it has to be: it is there after all, is passed by, or an error. */
    private void trouble(String wrong) throws IOException {
        units.forget();
        log.forget();
        if (units.have(at, end)) {
            int size = units.size(at);
            if (size == Units.EMPTY || look(size, units.position(at)) == null) {
                return;
            }
        }
        long next = Planner.of(range.command).explain(range, at, sum);
        if (next <= at) {
            throw new ReadError("StoreError", range + ": message " + at + " is not whole in the files of the node (found: "
                    + wrong + "), but its memory still has it. Run `warren check`, which says what is wrong with the "
                    + "files; until then option scan=python reads the message from memory");
        }
        LOG.warn("{}: offsets {} to {} are passed by: found {}", range, at, next, wrong);
        skipped += next - at;
        at = next;
        units.forget();
        log.forget();
    }

    @Override
    public InternalRow get() {
        return row;
    }

    @Override
    public CustomTaskMetric[] currentMetricsValues() {
        return Metrics.values(units.bytesRead() + log.bytesRead(), skipped);
    }

    @Override
    public void close() throws IOException {
        units.close();
        log.close();
    }
}

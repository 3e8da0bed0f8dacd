package warren.spark;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.catalyst.util.MapData;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.BinaryView;
import org.apache.spark.unsafe.types.CalendarInterval;
import org.apache.spark.unsafe.types.TimestampNanosVal;
import org.apache.spark.unsafe.types.UTF8String;
import org.apache.spark.unsafe.types.VariantVal;

/**
 * A record as Spark's row: what a query asks for is taken from the window when it is asked for, and nothing else is
 * copied. It is the same object for all rows of a task, as `PartitionReader` allows: who keeps one copies it. Texts and
 * bytes that it gives are the caller's.
 */
final class RecordRow extends InternalRow {
    private static final long serialVersionUID = 1L;

    /** What `timestampType` says, as in Kafka: `timestamp` is when the message was stored. */
    private static final int LOG_APPEND_TIME = 1;

    /** Columns as workers/spark/schema.py names them; their numbers here, as a switch over numbers is cheap. */
    private static final List<String> NAMES = List.of(
            "key", "value", "topic", "partition", "offset", "timestamp", "born_timestamp", "tag", "msg_id", "headers",
            "timestamptype");

    private static final int KEY = 0;
    private static final int VALUE = 1;
    private static final int TOPIC = 2;
    private static final int PARTITION = 3;
    private static final int OFFSET = 4;
    private static final int TIMESTAMP = 5;
    private static final int BORN_TIMESTAMP = 6;
    private static final int TAG = 7;
    private static final int MSG_ID = 8;
    private static final int HEADERS = 9;
    private static final int TIMESTAMPTYPE = 10;

    private final transient Record record;
    private final transient UTF8String topic;
    private final int queue;
    private final int[] columns;
    /** Tags repeat: the one before is given again. */
    private transient UTF8String tag;
    private transient byte[] tagBytes = {};

    RecordRow(Record record, Range range, StructType schema) {
        this.record = record;
        this.topic = UTF8String.fromString(range.topic);
        this.queue = range.queue;
        String[] names = schema.fieldNames();
        this.columns = new int[names.length];
        for (int i = 0; i < names.length; i++) {
            columns[i] = NAMES.indexOf(names[i].toLowerCase(Locale.ROOT));
            if (columns[i] < 0) {
                throw new ReadError("UsageError", "Warren has no column '" + names[i] + "'");
            }
        }
    }

    static boolean has(StructType schema, String column) {
        return Arrays.stream(schema.fieldNames()).anyMatch(column::equalsIgnoreCase);
    }

    @Override
    public int numFields() {
        return columns.length;
    }

    @Override
    public boolean isNullAt(int ordinal) {
        switch (columns[ordinal]) {
            case KEY:
                return record.keysAt < 0;
            case TAG:
                return record.tagAt < 0;
            case HEADERS:
                return !hasHeaders();
            default:
                return false;
        }
    }

    @Override
    public int getInt(int ordinal) {
        return columns[ordinal] == PARTITION ? queue : LOG_APPEND_TIME;
    }

    @Override
    public long getLong(int ordinal) {
        switch (columns[ordinal]) {
            case TIMESTAMP:
                return record.storeTimestamp * 1000;
            case BORN_TIMESTAMP:
                return record.bornTimestamp * 1000;
            default:
                return record.queueOffset;
        }
    }

    @Override
    public UTF8String getUTF8String(int ordinal) {
        if (columns[ordinal] == TOPIC) {
            return topic;
        }
        int end = record.tagAt + record.tagBytes;
        if (tag == null || !Arrays.equals(tagBytes, 0, tagBytes.length, record.bytes, record.tagAt, end)) {
            tagBytes = Arrays.copyOfRange(record.bytes, record.tagAt, end);
            tag = UTF8String.fromBytes(tagBytes);
        }
        return tag;
    }

    @Override
    public byte[] getBinary(int ordinal) {
        switch (columns[ordinal]) {
            case VALUE:
                return Arrays.copyOfRange(record.bytes, record.bodyAt, record.bodyAt + record.bodyBytes);
            case KEY:
                return Arrays.copyOfRange(record.bytes, record.keysAt, record.keysAt + record.keysBytes);
            default:
                return messageId();
        }
    }

    private byte[] messageId() {
        int n = record.storeHostBytes;
        byte[] id = new byte[n + 8];
        System.arraycopy(record.bytes, record.storeHostAt, id, 0, n);
        Bytes.LONG.set(id, n, record.physicalOffset);
        return id;
    }

    private boolean hasHeaders() {
        int at = record.propertiesAt;
        while (at < record.propertiesEnd) {
            int nameEnd = find(at, 1);
            if (!record.isColumn(at, nameEnd - at)) {
                return true;
            }
            at = find(nameEnd + 1, 2) + 1;
        }
        return false;
    }

    @Override
    public ArrayData getArray(int ordinal) {
        List<Object> headers = new ArrayList<>();
        int at = record.propertiesAt;
        while (at < record.propertiesEnd) {
            int nameEnd = find(at, 1);
            int valueEnd = find(nameEnd + 1, 2);
            if (!record.isColumn(at, nameEnd - at)) {
                UTF8String name = UTF8String.fromBytes(Arrays.copyOfRange(record.bytes, at, nameEnd));
                byte[] value = Arrays.copyOfRange(record.bytes, nameEnd + 1, valueEnd);
                headers.add(new GenericInternalRow(new Object[] {name, value}));
            }
            at = valueEnd + 1;
        }
        return new GenericArrayData(headers.toArray());
    }

    /** Where the next byte like this is, or the end of the properties. They were checked. */
    private int find(int from, int wanted) {
        int at = from;
        while (at < record.propertiesEnd && record.bytes[at] != wanted) {
            at++;
        }
        return at;
    }

    @Override
    public Object get(int ordinal, DataType type) {
        if (isNullAt(ordinal)) {
            return null;
        }
        switch (columns[ordinal]) {
            case PARTITION:
            case TIMESTAMPTYPE:
                return getInt(ordinal);
            case OFFSET:
            case TIMESTAMP:
            case BORN_TIMESTAMP:
                return getLong(ordinal);
            case TOPIC:
            case TAG:
                return getUTF8String(ordinal);
            case HEADERS:
                return getArray(ordinal);
            case KEY:
            case VALUE:
            case MSG_ID:
                return getBinary(ordinal);
            default:
                throw none();
        }
    }

    @Override
    public InternalRow copy() {
        Object[] values = new Object[columns.length];
        for (int i = 0; i < values.length; i++) {
            values[i] = get(i, null);
        }
        return new GenericInternalRow(values);
    }

    // What no column of the row has.

    private UnsupportedOperationException none() {
        return new UnsupportedOperationException("Warren's row has no such column");
    }

    @Override
    public void setNullAt(int ordinal) {
        throw none();
    }

    @Override
    public void update(int ordinal, Object value) {
        throw none();
    }

    @Override
    public boolean getBoolean(int ordinal) {
        throw none();
    }

    @Override
    public byte getByte(int ordinal) {
        throw none();
    }

    @Override
    public short getShort(int ordinal) {
        throw none();
    }

    @Override
    public float getFloat(int ordinal) {
        throw none();
    }

    @Override
    public double getDouble(int ordinal) {
        throw none();
    }

    @Override
    public Decimal getDecimal(int ordinal, int precision, int scale) {
        throw none();
    }

    @Override
    public BinaryView getBinaryView(int ordinal) {
        throw none();
    }

    @Override
    public CalendarInterval getInterval(int ordinal) {
        throw none();
    }

    @Override
    public TimestampNanosVal getTimestampNTZNanos(int ordinal) {
        throw none();
    }

    @Override
    public TimestampNanosVal getTimestampLTZNanos(int ordinal) {
        throw none();
    }

    @Override
    public VariantVal getVariant(int ordinal) {
        throw none();
    }

    @Override
    public InternalRow getStruct(int ordinal, int fields) {
        throw none();
    }

    @Override
    public MapData getMap(int ordinal) {
        throw none();
    }
}

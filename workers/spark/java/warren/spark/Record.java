package warren.spark;

import java.util.Arrays;
import java.util.zip.CRC32;

/**
 * One record of the commit log, as it lies in the window: where its parts are. Checked as `engine/topics/record.c`
 * checks it. The format: docs/formats.md.
 */
final class Record {
    private static final int MAGIC_V1 = 0xdaa320a7;
    private static final int MAGIC_V2 = 0xdaa320ab;
    private static final int HEAD = 48;
    private static final int BORN_HOST_V6 = 16;
    private static final int STORE_HOST_V6 = 32;
    private static final int BODY_CRC_MASK = 0x7fffffff;
    private static final int TOPIC_V1_MAX = 127;
    private static final int TEXT_MAX = 32767;
    private static final long HIGH = 0x8080808080808080L;
    private static final long LOW7 = 0x7d7d7d7d7d7d7d7dL;
    private static final int NAME_END = 1;
    private static final int VALUE_END = 2;
    private static final int KEYS = 0x4b455953;
    private static final int TAGS = 0x54414753;

    private final byte[] topic;
    private final int id;
    private final int queue;
    private final CRC32 crc = new CRC32();

    byte[] bytes;
    int at;
    int size;
    long queueOffset;
    long physicalOffset;
    long bornTimestamp;
    long storeTimestamp;
    int storeHostAt;
    int storeHostBytes;
    int bodyAt;
    int bodyBytes;
    int propertiesAt;
    int propertiesEnd;
    /** −1: it has none. */
    int keysAt;
    int keysBytes;
    int tagAt;
    int tagBytes;

    Record(byte[] topic, int id, int queue) {
        this.topic = topic;
        this.id = id;
        this.queue = queue;
    }

    /**
     * Look at the record of `expected` bytes that the unit of an offset leads to. Null: it is that message, and whole;
     * else what is wrong with it. `sum`: its body is summed, too.
     */
    String look(byte[] window, int place, int expected, long position, long offset, boolean sum) {
        bytes = window;
        at = place;
        size = (int) Bytes.INT.get(window, place);
        int magic = (int) Bytes.INT.get(window, place + 4);
        if ((size | magic) == 0) {
            return "zeros";
        }
        if (magic != MAGIC_V1 && magic != MAGIC_V2) {
            return "no record: magic";
        }
        if (size != expected) {
            return "another size";
        }
        physicalOffset = (long) Bytes.LONG.get(window, place + 28);
        if (physicalOffset != position) {
            return "no record: position";
        }
        String wrong = places(magic == MAGIC_V2);
        if (wrong != null) {
            return wrong;
        }
        queueOffset = (long) Bytes.LONG.get(window, place + 20);
        if (queueOffset != offset || (int) Bytes.INT.get(window, place + 12) != queue) {
            return "another message";
        }
        int flag = (int) Bytes.INT.get(window, place + 16);
        int topicBytes = topic.length;
        int topicAt = propertiesAt - 2 - topicBytes;
        if ((flag != id && flag != 0) || !Arrays.equals(topic, 0, topicBytes, window, topicAt, topicAt + topicBytes)) {
            return "a message of another topic";
        }
        keysAt = tagAt = -1;
        if (propertiesEnd != propertiesAt && !properties()) {
            return "no record: properties";
        }
        int body = (int) Bytes.INT.get(window, place + 8);
        if (body < 0) {
            return "no record: crc";
        }
        if (sum) {
            crc.reset();
            crc.update(window, bodyAt, bodyBytes);
            if (((int) crc.getValue() & BODY_CRC_MASK) != body) {
                return "no record: crc";
            }
        }
        return null;
    }

    /** The places of all parts, from the lengths, which must add up to the size. */
    private String places(boolean v2) {
        int sysFlag = (int) Bytes.INT.get(bytes, at + 36);
        int bornHost = (sysFlag & BORN_HOST_V6) != 0 ? 20 : 8;
        storeHostBytes = (sysFlag & STORE_HOST_V6) != 0 ? 20 : 8;
        int stored = HEAD + bornHost;
        storeHostAt = at + stored + 8;
        int tail = storeHostAt + storeHostBytes;
        bodyAt = tail + 16;
        int fixed = bodyAt - at + (v2 ? 2 : 1) + 2;
        int left = size - fixed;
        if (left < 0) {
            return "no record: lengths";
        }
        bodyBytes = (int) Bytes.INT.get(bytes, tail + 12);
        if (bodyBytes < 0 || bodyBytes > left) {
            return "no record: lengths";
        }
        left -= bodyBytes;
        int behind = bodyAt + bodyBytes;
        int topicBytes = v2 ? (short) Bytes.SHORT.get(bytes, behind) & 0xffff : bytes[behind] & 0xff;
        if (topicBytes == 0 || topicBytes > (v2 ? TEXT_MAX : TOPIC_V1_MAX)) {
            return "no record: topic length";
        }
        if (topicBytes > left) {
            return "no record: lengths";
        }
        if (topicBytes != topic.length) {
            return "a message of another topic";
        }
        left -= topicBytes;
        propertiesAt = behind + (v2 ? 2 : 1) + topicBytes + 2;
        if (((short) Bytes.SHORT.get(bytes, propertiesAt - 2) & 0xffff) != left || left > TEXT_MAX) {
            return "no record: lengths";
        }
        propertiesEnd = propertiesAt + left;
        bornTimestamp = (long) Bytes.LONG.get(bytes, at + 40);
        storeTimestamp = (long) Bytes.LONG.get(bytes, at + stored);
        if ((int) Bytes.INT.get(bytes, tail) < 0) {
            return "no record: number";
        }
        return null;
    }

    /** Whether names and values alternate, and all is UTF-8; and where keys and tag are. Eight bytes at a time. */
    private boolean properties() {
        int wanted = NAME_END;
        int begin = propertiesAt;
        int nameAt = 0;
        int nameBytes = 0;
        long any = 0;
        for (int i = propertiesAt; i < propertiesEnd; i += 8) {
            int n = Math.min(8, propertiesEnd - i);
            // Behind the last property no byte is looked at: what is missing of a word becomes 0xff…
            long word = n == 8 ? (long) Bytes.LONG.get(bytes, i) : tail(i, n);
            any |= n == 8 ? word : word & -1L << (8 - n) * 8;
            // The high bit of each ASCII byte below 3: 0x7d + 3 is 0x80, and no sum reaches the next byte.
            long low = ~(((word & ~HIGH) + LOW7) | word) & HIGH;
            while (low != 0) {
                int bit = Long.numberOfLeadingZeros(low);
                low &= ~(1L << 63 - bit);
                int here = i + bit / 8;
                if (bytes[here] != wanted) {
                    return false;
                }
                if (wanted == NAME_END) {
                    if (here == begin) {
                        return false;
                    }
                    nameAt = begin;
                    nameBytes = here - begin;
                    wanted = VALUE_END;
                } else {
                    property(nameAt, nameBytes, begin, here - begin);
                    wanted = NAME_END;
                }
                begin = here + 1;
            }
        }
        if (wanted == VALUE_END) {
            property(nameAt, nameBytes, begin, propertiesEnd - begin);
        } else if (begin != propertiesEnd) {
            return false;
        }
        return (any & HIGH) == 0 || Bytes.isUtf8(bytes, propertiesAt, propertiesEnd);
    }

    private long tail(int from, int n) {
        long word = -1L;
        for (int i = 0; i < n; i++) {
            word = word << 8 | bytes[from + i] & 0xff;
        }
        return n == 0 ? word : word << (8 - n) * 8 | -1L >>> n * 8;
    }

    private void property(int nameAt, int nameBytes, int valueAt, int valueBytes) {
        if (nameBytes != 4) {
            return;
        }
        int name = (int) Bytes.INT.get(bytes, nameAt);
        if (name == KEYS) {
            keysAt = valueAt;
            keysBytes = valueBytes;
        } else if (name == TAGS) {
            tagAt = valueAt;
            tagBytes = valueBytes;
        }
    }

    /** Is this the name of a property that has a column of its own? */
    boolean isColumn(int nameAt, int nameBytes) {
        if (nameBytes != 4) {
            return false;
        }
        int name = (int) Bytes.INT.get(bytes, nameAt);
        return name == KEYS || name == TAGS;
    }

    boolean hasTag(byte[] tag) {
        return tagAt >= 0 && Arrays.equals(tag, 0, tag.length, bytes, tagAt, tagAt + tagBytes);
    }

    /** Is this one of its keys, which have spaces between them? */
    boolean hasKey(byte[] key) {
        int end = keysAt + keysBytes;
        int begin = keysAt;
        while (keysAt >= 0 && begin < end) {
            int to = begin;
            while (to < end && bytes[to] != ' ') {
                to++;
            }
            if (Arrays.equals(key, 0, key.length, bytes, begin, to)) {
                return true;
            }
            begin = to + 1;
        }
        return false;
    }
}

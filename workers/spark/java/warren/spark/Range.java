package warren.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.connector.read.InputPartition;

/**
 * What one task reads: the messages of a queue of a topic from one offset up to another, as the planner planned it.
 *
 * <p>It has all that the files need to be read, so no task asks anybody while all is well.
 */
final class Range implements InputPartition, Serializable {
    private static final long serialVersionUID = 1L;

    /** Of the node's topics. */
    final String folder;
    final String topic;
    /** Of the topic, so that one that was deleted and made again shows nothing of before. */
    final int id;
    final int queue;
    /** Offsets: the first, and behind the last. */
    final long start;
    final long end;
    final long logFileBytes;
    final int consumeQueueEntries;
    /** Wanted ones; null: all messages. */
    final String[] tags;
    final String[] keys;
    /** Milliseconds since 1970: stored then or later, and before then. */
    final long since;
    final long until;
    /** Where it was planned. */
    final String host;
    /** What was asked for, and of whom: for an answer about what does not check out. */
    final String incarnation;
    final HashMap<String, String> options;
    final String[] command;

    Range(JsonNode planned, Map<String, String> options, String[] command) {
        this.folder = planned.required("folder").textValue();
        this.topic = planned.required("topic").textValue();
        this.id = planned.required("id").intValue();
        this.queue = planned.required("queue").intValue();
        this.start = planned.required("start").longValue();
        this.end = planned.required("end").longValue();
        this.logFileBytes = planned.required("log_file_bytes").longValue();
        this.consumeQueueEntries = planned.required("consume_queue_entries").intValue();
        this.tags = texts(planned.get("tags"));
        this.keys = texts(planned.get("keys"));
        this.since = planned.hasNonNull("since") ? planned.get("since").longValue() : Long.MIN_VALUE;
        this.until = planned.hasNonNull("until") ? planned.get("until").longValue() : Long.MAX_VALUE;
        this.host = planned.required("host").textValue();
        this.incarnation = planned.required("incarnation").textValue();
        this.options = new HashMap<>(options);
        this.command = command;
    }

    private Range(Range of, long start, long end, String[] tags) {
        this.folder = of.folder;
        this.topic = of.topic;
        this.id = of.id;
        this.queue = of.queue;
        this.start = start;
        this.end = end;
        this.logFileBytes = of.logFileBytes;
        this.consumeQueueEntries = of.consumeQueueEntries;
        this.tags = tags;
        this.keys = of.keys;
        this.since = of.since;
        this.until = of.until;
        this.host = of.host;
        this.incarnation = of.incarnation;
        this.options = of.options;
        this.command = of.command;
    }

    /** The part of it between two offsets, of these tags; null: nothing is left. */
    Range narrowed(long first, long behind, String[] wanted) {
        long from = Math.max(start, first);
        long to = Math.min(end, behind);
        return from < to ? new Range(this, from, to, wanted) : null;
    }

    @Override
    public String[] preferredLocations() {
        return new String[] {host};
    }

    @Override
    public String toString() {
        return "queue " + queue + " of topic '" + topic + "', offsets " + start + " to " + end;
    }

    static Range[] all(JsonNode planned, Map<String, String> options, String[] command) {
        List<Range> ranges = new ArrayList<>();
        for (JsonNode one : planned) {
            ranges.add(new Range(one, options, command));
        }
        return ranges.toArray(new Range[0]);
    }

    private static String[] texts(JsonNode list) {
        if (list == null || list.isNull()) {
            return null;
        }
        String[] texts = new String[list.size()];
        for (int i = 0; i < texts.length; i++) {
            texts[i] = list.get(i).textValue();
        }
        return texts;
    }
}

package warren.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.Serializable;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.SparkEnv;
import org.apache.spark.sql.connector.read.InputPartition;

/**
 * What one task reads: the messages of a queue of a topic from one offset up to another, as the planner planned it.
 *
 * <p>It has all that the files need to be read, so no task asks anybody while all is well.
 */
final class Range implements InputPartition, Serializable {
    private static final long serialVersionUID = 1L;

    /** The node's directory on its own host, where others see it (null: nowhere), and the folder of topics there. */
    final String path;
    final String mount;
    final String topics;
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
    /** Where it was planned, for texts, and where tasks best run, by Spark's names. */
    final String plannedOn;
    final String[] preferred;
    /** What was asked for, and of whom: for an answer about what does not check out. */
    final String incarnation;
    final HashMap<String, String> options;
    final String[] command;

    Range(JsonNode planned, Map<String, String> options, String[] command) {
        this.path = planned.required("path").textValue();
        this.mount = planned.hasNonNull("mount") ? planned.get("mount").textValue() : null;
        this.topics = planned.required("topics").textValue();
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
        this.plannedOn = planned.required("planned_on").textValue();
        this.preferred = planned.hasNonNull("preferred")
                ? texts(planned.get("preferred"))
                : new String[] {plannedOn, SparkEnv.get().conf().get("spark.driver.host", plannedOn)};
        this.incarnation = planned.required("incarnation").textValue();
        this.options = new HashMap<>(options);
        this.command = command;
    }

    private Range(Range of, long start, long end, String[] tags) {
        this.path = of.path;
        this.mount = of.mount;
        this.topics = of.topics;
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
        this.plannedOn = of.plannedOn;
        this.preferred = of.preferred;
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
        return preferred;
    }

    /** The folder of the node's topics on this host. An error: the node is another host's, and nothing shows its files. */
    Path folder() {
        String node = incarnation.substring(0, incarnation.indexOf('-'));
        String found = nodeAt(path);
        if (node.equals(found)) {
            return Path.of(path, topics);
        }
        if (mount != null && node.equals(nodeAt(mount))) {
            return Path.of(mount, topics);
        }
        throw new ReadError("UsageError", Planner.of(command).elsewhere(this, node, found));
    }

    /** The id of the node whose directory this is, as incarnations begin with it; null: it is none. */
    private static String nodeAt(String directory) {
        try {
            JsonNode id = new ObjectMapper().readTree(Path.of(directory, "node.json").toFile()).get("node_id");
            return id == null || !id.isIntegralNumber() ? null : String.format("%012x", id.longValue());
        } catch (IOException none) {
            return null;
        }
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

package warren.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.InterruptedIOException;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.spark.SparkEnv;

/**
 * The Python process that plans: options, offsets, ranges, leases and data loss are decided there, once for both scans
 * (workers/spark/native_planner.py). A line of JSON asks, a line answers.
 *
 * <p>One for each Python of this JVM, started at the first question. It ends when its input does: with this JVM,
 * however that ends. When it dies, what it had open is lost: questions fail, and who asks anew opens anew, in another one.
 */
final class Planner {
    private static final ObjectMapper JSON = new ObjectMapper();
    /** Longer than any wait inside of the planner, whose timeouts are options. */
    private static final long ANSWER_S = 600;
    /** By what name its node knows it (workers/spark/client.py). */
    private static final String APPLICATION = "WARREN_SPARK_APPLICATION";
    private static final String ENDED = "PlannerEnded";
    private static final long END_S = 10;
    private static final Map<String, Planner> PLANNERS = new HashMap<>();

    private final String[] command;
    private final Process process;
    private final OutputStream to;
    private final Map<Long, CompletableFuture<JsonNode>> waiting = new ConcurrentHashMap<>();
    private long asked;
    private volatile boolean ending;
    /** It does not answer any more; its process may be there for a moment. */
    private volatile boolean over;

    private Planner(String[] command) throws IOException {
        this.command = command;
        ProcessBuilder builder = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT);
        builder.environment().put(APPLICATION, SparkEnv.get().conf().get("spark.app.name", "application"));
        this.process = builder.start();
        this.to = process.getOutputStream();
        Thread reader = new Thread(this::readAnswers, "warren-planner");
        reader.setDaemon(true);
        reader.start();
        process.onExit().thenRun(this::ended);
        Runtime.getRuntime().addShutdownHook(new Thread(this::end, "warren-planner-end"));
    }

    /** The one that a command starts. */
    static Planner of(String[] command) {
        synchronized (PLANNERS) {
            Planner planner = PLANNERS.get(String.join("\0", command));
            if (planner == null || !planner.isAlive()) {
                try {
                    planner = new Planner(command);
                } catch (IOException problem) {
                    throw new ReadError(ENDED, "Warren's planner does not start: " + problem.getMessage()
                            + "; the configuration spark.warren.python names the Python that has Warren", problem);
                }
                PLANNERS.put(String.join("\0", command), planner);
            }
            return planner;
        }
    }

    boolean isAlive() {
        return !over && process.isAlive();
    }

    private void ended() {
        if (!ending) {
            Leases.ended(this);
        }
    }

    private void end() {
        ending = true;
        try {
            to.close();
            if (!process.waitFor(END_S, TimeUnit.SECONDS)) {
                process.destroyForcibly();
            }
        } catch (IOException | InterruptedException ended) {
            process.destroyForcibly();
        }
    }

    private void readAnswers() {
        try (BufferedReader from =
                new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8))) {
            for (String line = from.readLine(); line != null; line = from.readLine()) {
                JsonNode answer = JSON.readTree(line);
                CompletableFuture<JsonNode> asker = waiting.remove(answer.required("number").longValue());
                if (asker != null) {
                    asker.complete(answer);
                }
            }
        } catch (IOException broken) {
            process.destroyForcibly();
        }
        IllegalStateException ended = new IllegalStateException("Warren's planner ended (" + String.join(" ", command)
                + "): start the query again; a stream goes on from its checkpoint");
        synchronized (this) {
            over = true;
        }
        waiting.values().forEach(asker -> asker.completeExceptionally(ended));
    }

    /** Ask, and wait for the answer. An error of Python's is one here, with its words. */
    private JsonNode ask(ObjectNode question) {
        CompletableFuture<JsonNode> answer = new CompletableFuture<>();
        long number;
        synchronized (this) {
            if (over) {
                throw new ReadError(ENDED, "Warren's planner ended: start the query again");
            }
            number = ++asked;
            waiting.put(number, answer);
            question.put("number", number);
            try {
                to.write((question + "\n").getBytes(StandardCharsets.UTF_8));
                to.flush();
            } catch (IOException ended) {
                over = true;
                answer.completeExceptionally(new IllegalStateException(
                        "Warren's planner ended: start the query again; a stream goes on from its checkpoint", ended));
            }
        }
        try {
            JsonNode found = answer.get(ANSWER_S, TimeUnit.SECONDS);
            if (found.has("error")) {
                throw new ReadError(found.get("error").textValue(), found.get("message").textValue());
            }
            return found.get("answer");
        } catch (ExecutionException failed) {
            throw new ReadError(ENDED, failed.getCause().getMessage(), failed.getCause());
        } catch (TimeoutException late) {
            throw new ReadError("TimedOut", "Warren's planner has not answered for " + ANSWER_S + " s", late);
        } catch (InterruptedException stopped) {
            Thread.currentThread().interrupt();
            // Spark knows by this class that a query was stopped, and did not fail.
            InterruptedIOException ended = new InterruptedIOException("the read ended while Warren's planner was asked");
            ended.initCause(stopped);
            throw new UncheckedIOException(ended);
        } finally {
            waiting.remove(number);
        }
    }

    private static ObjectNode question(String what) {
        return JSON.createObjectNode().put("ask", what);
    }

    /** Whether a read of topics with these options is native. */
    boolean isNative(Map<String, String> options) {
        ObjectNode question = question("native");
        question.set("options", JSON.valueToTree(options));
        return ask(question).booleanValue();
    }

    /** The schema of a read with these options, as Spark's JSON. */
    String schema(Map<String, String> options) {
        ObjectNode question = question("schema");
        question.set("options", JSON.valueToTree(options));
        return ask(question).textValue();
    }

    /** Open a reader, "batch" or "stream": its number for the other questions. */
    long open(Map<String, String> options, String schema, String kind) {
        ObjectNode question = question("open").put("schema", schema).put("kind", kind);
        question.set("options", JSON.valueToTree(options));
        return ask(question).longValue();
    }

    /** The ranges of a batch, or of a micro-batch between two offsets. */
    Range[] partitions(long reader, Map<String, String> options, String start, String end) {
        ObjectNode question = question("partitions").put("reader", reader);
        if (start != null) {
            question.put("start", start).put("end", end);
        }
        return Range.all(ask(question), options, command);
    }

    /** Hold ranges that were planned before: the number by which they are let go (`stop`). */
    long hold(Map<String, String> options, Range[] ranges) {
        ObjectNode question = question("hold");
        question.set("options", JSON.valueToTree(options));
        ArrayNode held = question.putArray("ranges");
        for (Range range : ranges) {
            held.addObject()
                    .put("topic", range.topic)
                    .put("incarnation", range.incarnation)
                    .put("queue", range.queue)
                    .put("start", range.start)
                    .put("end", range.end)
                    .put("planned_on", range.plannedOn);
        }
        return ask(question).longValue();
    }

    /** A question about a stream, with an offset where it is about one. */
    JsonNode ofStream(long reader, String what, String offset) {
        ObjectNode question = question(what).put("reader", reader);
        if (offset != null) {
            question.put("offset", offset);
        }
        return ask(question);
    }

    /** The next micro-batch's end: behind `start`, with a limit (workers/spark/native_planner.py: LIMITS). */
    JsonNode latest(long reader, String start, String limit, long most) {
        return ask(question("latest")
                .put("reader", reader)
                .put("start", start)
                .put("limit", limit)
                .put("most", most));
    }

    /**
     * Where a range goes on whose message at an offset does not check out: that offset, if it is there after all.
     * `body`: its bytes are wanted.
     */
    long explain(Range range, long offset, boolean body) {
        ObjectNode question = question("explain")
                .put("topic", range.topic)
                .put("incarnation", range.incarnation)
                .put("queue", range.queue)
                .put("offset", offset)
                .put("end", range.end)
                .put("planned_on", range.plannedOn)
                .put("body", body);
        question.set("options", JSON.valueToTree(range.options));
        return ask(question).longValue();
    }

    /** What is said of a range whose node is another host's: `found` is the node that has its path here, or null. */
    String elsewhere(Range range, String node, String found) {
        return ask(question("elsewhere")
                        .put("path", range.path)
                        .put("node", node)
                        .put("found", found)
                        .put("planned_on", range.plannedOn))
                .textValue();
    }

    /** Close a reader; what it, or this number, holds is let go. */
    void stop(long reader) {
        ask(question("stop").put("reader", reader));
    }
}

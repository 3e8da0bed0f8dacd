package warren.spark;

import org.apache.spark.SparkThrowable;

/**
 * An error that is for people: what Python's source said. Spark passes one that has a condition on as it is, also out
 * of a task, and PySpark shows this kind by its words, without a trace of Java's.
 */
final class ReadError extends IllegalArgumentException implements SparkThrowable {
    private static final long serialVersionUID = 1L;

    private final String kind;

    ReadError(String kind, String words, Throwable cause) {
        super(kind + ": " + words, cause);
        this.kind = kind;
    }

    ReadError(String kind, String words) {
        this(kind, words, null);
    }

    @Override
    public String getCondition() {
        return "WARREN." + kind;
    }

    @Override
    public String getSqlState() {
        return "58030"; // an input or output error
    }
}

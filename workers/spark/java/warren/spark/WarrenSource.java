package warren.spark;

import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * `format("warren")` where the jar is: topics are read by Spark's own tasks (scan=native), and everything else by the
 * source in Python, to which it is handed over. What is planned, and which scan it is, Python says in both cases.
 *
 * <p>Spark asks a source of a name in Java before one in Python, and refuses to register a second one of that name; so
 * the one in Python has another name there (workers/spark/session.py).
 */
public class WarrenSource implements TableProvider, DataSourceRegister {
    private static final String NAME = "warren";
    private static final String NAME_IN_PYTHON = "warren-python";
    /** The Python that has Warren: set when the source is registered. */
    private static final String PYTHON = "spark.warren.python";
    /** What says that topics are read. */
    private static final Set<String> TOPICS = Set.of("subscribe", "subscribepattern", "assign");
    /** What Spark puts beside the options of a table that was made in SQL. */
    private static final Set<String> OF_TABLES =
            Set.of("comment", "owner", "provider", "external", "is_managed_location", "collation", "table_type",
                    "serialization.format");
    private static final String LOCATION = "location";
    private static final String OF_OPTIONS = "option.";

    private final PythonDataSourceV2 python = new PythonDataSourceV2();
    private Boolean isNative;

    /** Made by Spark, for one read or write. */
    public WarrenSource() {
        python.setShortName(NAME_IN_PYTHON);
    }

    @Override
    public String shortName() {
        return NAME;
    }

    /** How the planner is started. */
    static String[] command() {
        String python = SparkSession.active().conf().get(PYTHON, System.getenv("PYSPARK_PYTHON"));
        return new String[] {python == null ? "python3" : python, "-m", "warren.workers.spark.native_planner"};
    }

    /** The options of a read, also of a table in SQL, whose path Spark calls its location. */
    private static Map<String, String> options(Map<String, String> properties) {
        Map<String, String> options = new HashMap<>();
        for (Map.Entry<String, String> property : properties.entrySet()) {
            String name = property.getKey();
            String lower = name.toLowerCase(Locale.ROOT);
            if (lower.equals(LOCATION)) {
                options.putIfAbsent("path", property.getValue());
            } else if (!OF_TABLES.contains(lower) && !lower.startsWith(OF_OPTIONS)) {
                options.put(name, property.getValue());
            }
        }
        return options;
    }

    /** Whether this read is native. Asked once: what is there may change. */
    private boolean isNative(Map<String, String> options) {
        if (isNative == null) {
            boolean topics = options.entrySet().stream()
                    .anyMatch(option -> TOPICS.contains(option.getKey().toLowerCase(Locale.ROOT))
                            && !option.getValue().isEmpty());
            isNative = topics && Planner.of(command()).isNative(options);
        }
        return isNative;
    }

    @Override
    public StructType inferSchema(CaseInsensitiveStringMap given) {
        Map<String, String> options = options(given.asCaseSensitiveMap());
        if (!isNative(options)) {
            return python.inferSchema(given);
        }
        return (StructType) DataType.fromJson(Planner.of(command()).schema(given.asCaseSensitiveMap()));
    }

    @Override
    public Transform[] inferPartitioning(CaseInsensitiveStringMap given) {
        return new Transform[0];
    }

    @Override
    public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
        Map<String, String> options = options(properties);
        return isNative(options)
                ? new TopicTable(options, schema)
                : python.getTable(schema, partitioning, properties);
    }

    @Override
    public boolean supportsExternalMetadata() {
        return true;
    }
}

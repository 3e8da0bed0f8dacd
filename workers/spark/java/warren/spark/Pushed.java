package warren.spark;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.spark.sql.sources.EqualTo;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.sources.GreaterThan;
import org.apache.spark.sql.sources.GreaterThanOrEqual;
import org.apache.spark.sql.sources.In;
import org.apache.spark.sql.sources.LessThan;
import org.apache.spark.sql.sources.LessThanOrEqual;

/**
 * What a query's filters say of what need not be read: queues, topics, offsets, tags. All filters of a query hold
 * together, so each of them may only narrow; those that say nothing of this are left to Spark, which applies all.
 */
final class Pushed {
    private final List<Filter> used = new ArrayList<>();
    private Set<Object> partitions;
    private Set<Object> topics;
    private Set<Object> tags;
    private long first = Long.MIN_VALUE;
    private long behind = Long.MAX_VALUE;

    Pushed(Filter[] filters) {
        for (Filter filter : filters) {
            if (take(filter)) {
                used.add(filter);
            }
        }
    }

    private boolean take(Filter filter) {
        if (filter instanceof EqualTo) {
            EqualTo equal = (EqualTo) filter;
            return is(equal.attribute(), Set.of(equal.value()));
        }
        if (filter instanceof In) {
            In in = (In) filter;
            Set<Object> values = new HashSet<>(Arrays.asList(in.values()));
            values.remove(null); // nothing is equal to null
            return is(in.attribute(), values);
        }
        if (filter instanceof GreaterThan) {
            return from(((GreaterThan) filter).attribute(), ((GreaterThan) filter).value(), 1);
        }
        if (filter instanceof GreaterThanOrEqual) {
            return from(((GreaterThanOrEqual) filter).attribute(), ((GreaterThanOrEqual) filter).value(), 0);
        }
        if (filter instanceof LessThan) {
            return to(((LessThan) filter).attribute(), ((LessThan) filter).value(), 0);
        }
        if (filter instanceof LessThanOrEqual) {
            return to(((LessThanOrEqual) filter).attribute(), ((LessThanOrEqual) filter).value(), 1);
        }
        return false;
    }

    private boolean is(String column, Set<Object> values) {
        switch (column) {
            case "partition":
                partitions = both(partitions, values);
                return true;
            case "topic":
                topics = both(topics, values);
                return true;
            case "tag":
                tags = both(tags, values);
                return true;
            case "offset":
                long least = Long.MAX_VALUE;
                long most = Long.MIN_VALUE;
                for (Object value : values) {
                    least = Math.min(least, (Long) value);
                    most = Math.max(most, (Long) value);
                }
                return values.isEmpty() || (from(column, least, 0) && to(column, most, 1));
            default:
                return false;
        }
    }

    private static Set<Object> both(Set<Object> before, Set<Object> values) {
        Set<Object> kept = new HashSet<>(values);
        if (before != null) {
            kept.retainAll(before);
        }
        return kept;
    }

    private boolean from(String column, Object value, int more) {
        if (!column.equals("offset")) {
            return false;
        }
        long offset = (Long) value;
        first = Math.max(first, more == 1 && offset == Long.MAX_VALUE ? offset : offset + more);
        return true;
    }

    private boolean to(String column, Object value, int more) {
        if (!column.equals("offset")) {
            return false;
        }
        long offset = (Long) value;
        behind = Math.min(behind, more == 1 && offset == Long.MAX_VALUE ? offset : offset + more);
        return true;
    }

    Filter[] used() {
        return used.toArray(new Filter[0]);
    }

    /** What is left of a range; null: nothing. */
    Range narrow(Range range) {
        if ((partitions != null && !partitions.contains(range.queue))
                || (topics != null && !topics.contains(range.topic))) {
            return null;
        }
        String[] wanted = range.tags;
        if (tags != null) {
            Set<Object> kept = wanted == null ? tags : both(tags, new HashSet<>(Arrays.asList(wanted)));
            if (kept.isEmpty()) {
                return null;
            }
            wanted = kept.toArray(new String[0]);
        }
        return range.narrowed(first, behind, wanted);
    }

    @Override
    public String toString() {
        return used.isEmpty() ? "" : ", pushed " + used;
    }
}

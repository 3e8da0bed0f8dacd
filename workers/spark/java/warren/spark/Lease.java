package warren.spark;

import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * What a batch has planned, kept from retention while somebody reads it: a hold of the planner's, taken and given back as
 * often as that is needed. Who reads it, Leases knows.
 *
 * <p>A hold ends with the planner. The next one is asked for another, which begins behind what is gone by then.
 */
final class Lease {
    private static final Logger LOG = LoggerFactory.getLogger(Lease.class);

    private final Leases leases;
    private final Map<String, String> options;
    private final String[] command;
    final Range[] ranges;
    /** Who holds it, and by which number; null: nobody. Of this object's lock, as all questions to the planner are. */
    private Planner planner;
    private long number;

    /** Of the lock of `leases`: queries and jobs that read it now, and how often it came into use. */
    final Set<String> readers = new HashSet<>();
    long used;

    /** Of ranges that a planner has just planned, and holds by a number. */
    Lease(
            Leases leases, Map<String, String> options, String[] command, Range[] ranges, Planner planner,
            long number) {
        this.leases = leases;
        this.options = options;
        this.command = command;
        this.ranges = ranges;
        this.planner = planner;
        this.number = number;
    }

    /** This thread plans to read it: from now on it is held. Raises ReadError as `take`. */
    void planned() {
        leases.planned(this);
    }

    /** The tasks of a stage are being made, which read it. */
    void sent() {
        leases.sent(this);
    }

    /** Hold it, if it is not held. Raises ReadError: DataLoss, if some of it is gone, and the options do not allow that. */
    synchronized void take() {
        if (planner == null || !planner.isAlive()) {
            planner = null;
            Planner one = Planner.of(command);
            number = one.hold(options, ranges);
            planner = one;
        }
    }

    /** The same, where nobody can be told what is wrong: the tasks will say what they do not find. */
    void takeIfPossible() {
        try {
            take();
        } catch (ReadError problem) {
            LOG.warn("messages that are being read are not kept from retention: {}", problem.getMessage());
        }
    }

    /** Give it back, unless it is wanted after all: that is looked at when nobody can take it meanwhile. */
    synchronized void giveBack(long whenUsed) {
        if (planner == null || leases.isWanted(this, whenUsed)) {
            return;
        }
        Planner one = planner;
        planner = null;
        try {
            one.stop(number);
        } catch (ReadError ended) {
            LOG.debug("a planner has ended, and its holds with it", ended);
        }
    }

    /** Whether this planner holds it. */
    synchronized boolean isOf(Planner one) {
        return planner == one;
    }
}

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
    /** A planner may just end when it is asked; its successor hardly. */
    private static final int TRIES = 3;

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

    /** This thread plans to read it: from now on it is held. */
    void planned() {
        leases.planned(this);
    }

    /** The tasks of a stage are being made, which read it. */
    void sent() {
        leases.sent(this);
    }

    /**
     * Hold it, if it is not held, and as far as it is there. What is gone, the tasks will say; so no reader is told if
     * nobody can hold it.
     */
    synchronized void take() {
        if (planner != null && planner.isAlive()) {
            return;
        }
        planner = null;
        ReadError wrong = null;
        for (int tries = 0; tries < TRIES; tries++) {
            try {
                Planner one = Planner.of(command);
                number = one.hold(options, ranges);
                planner = one;
                return;
            } catch (ReadError problem) {
                wrong = problem;
            }
        }
        LOG.warn("messages that are read are not kept from retention", wrong);
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

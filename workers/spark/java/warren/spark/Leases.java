package warren.spark;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import org.apache.spark.SparkContext;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerApplicationEnd;
import org.apache.spark.scheduler.SparkListenerEvent;
import org.apache.spark.scheduler.SparkListenerJobEnd;
import org.apache.spark.scheduler.SparkListenerJobStart;
import org.apache.spark.scheduler.SparkListenerStageSubmitted;
import org.apache.spark.sql.execution.SQLExecution;
import org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionEnd;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Which batches of this driver are being read, so that retention leaves them alone for just as long.
 *
 * <p>A batch has readers: queries (Spark's SQL executions), and jobs that belong to no query which still runs. It is held
 * while it has any. When its last query ends, it is given back; nothing says whether a job without a query was the last
 * one, nor whether a plan that was made without a query will be read: then it is held for a time.
 *
 * <p>A query reads a batch from the moment it plans it. Spark plans a frame once: later actions on it may begin with the
 * tasks. So a stage whose tasks read a batch says so: Spark sends the scan with them (TopicScan.Factory), for each try of
 * a stage, between the event that the stage was submitted and the next of them, in the one thread that submits stages. An
 * event of ours is posted there, so the stage before it is the one that reads.
 *
 * <p>Retention may be faster than such a later action; then its tasks say what is gone. Events of Spark
 * come through a queue of this listener's own; nothing here waits for a planner but its one thread.
 *
 * <p>Crash points: this JVM, the planner: its holds end, and of what is being read the next planner takes new ones. The
 * node: the planner takes its holds again when it runs (workers/spark/topic_source.py).
 */
final class Leases extends SparkListener {
    /** How long a batch is held that nobody reads as far as is known. */
    private static final String HOLD_SETTING = "spark.warren.holdSeconds";
    private static final long HOLD_S = 600;
    private static final String QUEUE = "warren";
    /** Ends of queries come before Spark forgets these; so few may be between the two. */
    private static final int ENDED_MAX = 1000;
    private static Leases current;

    private final SparkContext context;
    private final long holdNs;
    private final ScheduledThreadPoolExecutor thread;
    private final Set<Lease> held = new HashSet<>();
    private final ArrayDeque<String> ended = new ArrayDeque<>();
    private final Map<Integer, Set<Integer>> stagesOfJobs = new HashMap<>();
    private int stage = -1;
    private Properties stageProperties;
    private boolean over;

    private Leases(SparkContext context) {
        this.context = context;
        this.holdNs = TimeUnit.SECONDS.toNanos(context.conf().getLong(HOLD_SETTING, HOLD_S));
        this.thread = new ScheduledThreadPoolExecutor(1, task -> {
            Thread made = new Thread(task, "warren-leases");
            made.setDaemon(true);
            return made;
        });
    }

    /** Those of this driver. */
    static Leases of(SparkContext context) {
        synchronized (Leases.class) {
            if (current == null || current.context != context) {
                current = new Leases(context);
                context.listenerBus().addToQueue(current, QUEUE);
            }
            return current;
        }
    }

    /** A planner has ended, and with it what it held: of what is being read, another one takes hold. */
    static void ended(Planner planner) {
        Leases leases;
        synchronized (Leases.class) {
            leases = current;
        }
        if (leases != null) {
            leases.takeAgain(planner);
        }
    }

    private synchronized void takeAgain(Planner planner) {
        for (Lease lease : held) {
            if (!over && !lease.readers.isEmpty()) {
                thread.execute(() -> {
                    if (lease.isOf(planner)) {
                        lease.take();
                    }
                });
            }
        }
    }

    /** This thread plans to read a batch: from now on it is held. */
    void planned(Lease lease) {
        String query = context.getLocalProperty(SQLExecution.EXECUTION_ID_KEY());
        synchronized (this) {
            use(lease);
            if (runs(query)) {
                lease.readers.add(query(query));
            } else if (lease.readers.isEmpty()) {
                holdForATime(lease);
            }
        }
        lease.take();
    }

    /** The tasks of the stage that was submitted last read a batch. */
    static final class Used implements SparkListenerEvent {
        private final Lease lease;

        Used(Lease lease) {
            this.lease = lease;
        }

        @Override
        public boolean logEvent() {
            return false; // nothing for the history of this application
        }
    }

    /** The tasks of a stage are being made, which read a batch. */
    void sent(Lease lease) {
        context.listenerBus().post(new Used(lease));
    }

    @Override
    public synchronized void onOtherEvent(SparkListenerEvent event) {
        if (event instanceof Used) {
            used(((Used) event).lease);
        } else if (event instanceof SparkListenerSQLExecutionEnd) {
            String query = Long.toString(((SparkListenerSQLExecutionEnd) event).executionId());
            ended.addLast(query);
            if (ended.size() > ENDED_MAX) {
                ended.removeFirst();
            }
            done(query(query), true);
        }
    }

    private void used(Lease lease) {
        String query = stageProperties == null ? null : stageProperties.getProperty(SQLExecution.EXECUTION_ID_KEY());
        Set<String> readers = new HashSet<>();
        if (runs(query)) {
            readers.add(query(query));
        } else {
            stagesOfJobs.forEach((job, stages) -> {
                if (stages.contains(stage)) {
                    readers.add(job(job));
                }
            });
        }
        if (over || readers.isEmpty()) {
            return; // tasks of nothing that runs: it was only looked whether they can be sent
        }
        use(lease);
        lease.readers.addAll(readers);
        thread.execute(lease::take);
    }

    @Override
    public synchronized void onJobStart(SparkListenerJobStart event) {
        Set<Integer> stages = new HashSet<>();
        CollectionConverters.asJava(event.stageInfos()).forEach(info -> stages.add(info.stageId()));
        stagesOfJobs.put(event.jobId(), stages);
    }

    @Override
    public synchronized void onStageSubmitted(SparkListenerStageSubmitted event) {
        stage = event.stageInfo().stageId();
        stageProperties = event.properties();
    }

    @Override
    public synchronized void onJobEnd(SparkListenerJobEnd event) {
        stagesOfJobs.remove(event.jobId());
        done(job(event.jobId()), false);
    }

    @Override
    public synchronized void onApplicationEnd(SparkListenerApplicationEnd event) {
        over = true;
        thread.getQueue().clear(); // also what was to be given back later: it is now
        for (Lease lease : held) {
            lease.readers.clear();
            long whenUsed = lease.used;
            thread.execute(() -> lease.giveBack(whenUsed));
        }
        thread.shutdown();
    }

    private static String query(String number) {
        return "query " + number;
    }

    private static String job(int number) {
        return "job " + number;
    }

    /** Whether a query runs, whose end will be told: threads inherit the number of one that may have ended long ago. */
    private boolean runs(String query) {
        return query != null && !ended.contains(query) && SQLExecution.getQueryExecution(Long.parseLong(query)) != null;
    }

    private void use(Lease lease) {
        lease.used++;
        held.add(lease);
    }

    private void holdForATime(Lease lease) {
        giveBackLater(lease, holdNs);
    }

    private void done(String reader, boolean isQuery) {
        for (Lease lease : new ArrayList<>(held)) {
            if (lease.readers.remove(reader) && lease.readers.isEmpty()) {
                if (isQuery) {
                    giveBackLater(lease, 0);
                } else {
                    holdForATime(lease);
                }
            }
        }
    }

    private void giveBackLater(Lease lease, long afterNs) {
        long whenUsed = lease.used;
        if (!over) {
            thread.schedule(() -> lease.giveBack(whenUsed), afterNs, TimeUnit.NANOSECONDS);
        }
    }

    /** Whether a batch is read, or was used again since; if not, it is not held any more. */
    synchronized boolean isWanted(Lease lease, long whenUsed) {
        if (!lease.readers.isEmpty() || lease.used != whenUsed) {
            return true;
        }
        held.remove(lease);
        return false;
    }
}

/* The loop that a topic worker's life consists of. */
#ifndef WR_TOPICS_LOOP_H
#define WR_TOPICS_LOOP_H
#include "topics/worker.h"

/* What needs Python (bits). */
enum {
    WR_TOPIC_EVENT_NEED_FILE = 1,        /* the log's next file should be made */
    WR_TOPIC_EVENT_SLOTS_CHANGED = 2,    /* clients may have come or gone */
    WR_TOPIC_EVENT_CATALOG_CHANGED = 4,  /* a topic came or went, or a client names one that is not known */
    WR_TOPIC_EVENT_LOG_FAILED = 8,       /* once */
    WR_TOPIC_EVENT_DISPATCH_FAILED = 16,
    WR_TOPIC_EVENT_FINISHED = 32,        /* a link is served to its end */
    WR_TOPIC_EVENT_STOP = 64,
    WR_TOPIC_EVENT_KICK = 128,
    WR_TOPIC_EVENT_CONTROL = 512,        /* a client has a request */
    WR_TOPIC_EVENT_TIMER = 256           /* max_ns have passed, there is nothing to do, or a signal came */
};

/* Serve until something needs Python, or `max_ns` have passed (TIMER). Not until_event: returns when there is nothing to do. */
uint32_t wr_topic_run(wr_topic_worker *w, uint64_t max_ns, bool until_event);
#endif

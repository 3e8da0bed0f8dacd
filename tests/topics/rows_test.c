/* Goal: whoever waits for a topic's row is woken when it rises, whenever that happens; a row that became another topic's says nothing to
 * the readers of the one before. What was confirmed is shown to whoever asks for it afterwards, or is held up, and no wait outlasts that.
 * Method: a region of memory shared by processes; a writer that raises rows as the dispatcher does, readers that wait for each step, for
 * so long that a wake that is missed is seen; rows that are taken and given while readers look. */
#define _GNU_SOURCE
#include "support/check.h"
#include "topics/rows.h"
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define SECOND 1000000000ull
#define READERS 3
#define STEPS 900

static wr_topic_rows *rows;

static void rows_are_found_by_their_key(void) {
    CHECK(!wr_topic_row_find(rows, 7, 0));
    for (uint32_t queue = 0; queue < 3; queue++) wr_topic_row_give(rows, queue, wr_topic_row_key(7, queue), 2, 5);
    wr_topic_row_give(rows, 3, wr_topic_row_key(UINT32_MAX, 1023), 0, 0);
    for (uint32_t queue = 0; queue < 3; queue++) {
        wr_topic_row *row = wr_topic_row_find(rows, 7, queue);
        CHECK(row == wr_topic_row_at(rows, queue) && row->minimum == 2 && row->maximum == 5 && row->appended == 5);
    }
    CHECK(!wr_topic_row_find(rows, 7, 3) && !wr_topic_row_find(rows, 0, 0) && wr_topic_row_find(rows, UINT32_MAX, 1023));
    wr_topic_row *mine = wr_topic_row_find(rows, 7, 1);
    const uint64_t key = wr_topic_row_key(7, 1);
    CHECK(wr_topic_row_is(mine, key));
    wr_topic_row_take(rows, 1);
    CHECK(!wr_topic_row_is(mine, key) && !wr_topic_row_find(rows, 7, 1) && wr_topic_row_find(rows, 7, 2));
    CHECK(wr_topic_wait(rows, mine, key, 100, 60 * SECOND) == 0); /* nobody will ever raise it */
    wr_topic_row_give(rows, 1, wr_topic_row_key(8, 0), 0, 0);
    CHECK(!wr_topic_row_is(mine, key) && wr_topic_row_find(rows, 8, 0) == mine && rows->rows_n == 4);
    CHECK(wr_topic_wait(rows, mine, wr_topic_row_key(8, 0), 0, 1) == ETIMEDOUT);
    for (uint32_t i = 0; i < 4; i++) wr_topic_row_take(rows, i);
    for (uint32_t i = 0; i < WR_TOPIC_WAKES; i++) CHECK(!wr_topic_wake_of(rows, i)->waiters);
}

static _Atomic uint64_t at[READERS];

/* Follows the row of its topic; all topics share one pair of words. */
static void *follow(void *argument) {
    const uint32_t who = (uint32_t)(uintptr_t)argument, id = 1 + who * WR_TOPIC_WAKES;
    const uint64_t key = wr_topic_row_key(id, 0);
    wr_topic_row *row = wr_topic_row_find(rows, id, 0);
    CHECK(row);
    for (uint64_t seen = 0; seen < STEPS;) {
        CHECK(wr_topic_wait(rows, row, key, seen, 60 * SECOND) == 0); /* a wake that was missed is a time-out */
        uint64_t maximum = atomic_load_explicit(&row->maximum, memory_order_acquire);
        CHECK(maximum >= seen && wr_topic_row_is(row, key));
        seen = maximum;
        atomic_store(&at[who], seen);
    }
    return NULL;
}

static void no_wake_is_missed(void) {
    pthread_t threads[READERS];
    for (uint32_t i = 0; i < READERS; i++) wr_topic_row_give(rows, i, wr_topic_row_key(1 + i * WR_TOPIC_WAKES, 0), 0, 0);
    for (uint32_t i = 0; i < READERS; i++) CHECK(pthread_create(&threads[i], NULL, follow, (void *)(uintptr_t)i) == 0);
    for (uint64_t step = 1; step <= STEPS; step++) {
        for (uint32_t i = 0; i < READERS; i++) {
            atomic_store_explicit(&wr_topic_row_at(rows, i)->maximum, step, memory_order_release);
            wr_topic_wake_readers(rows, 1 + i * WR_TOPIC_WAKES);
            while (step % 3 == 0 && atomic_load(&at[i]) < step) sched_yield(); /* now and then they sleep again before the next step */
        }
    }
    for (uint32_t i = 0; i < READERS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(!wr_topic_wake_of(rows, 1)->waiters);
}

/* ---- what was confirmed, and is not shown yet ---- */

static _Atomic uint64_t told; /* messages that are confirmed; commit n holds message n */

/* Asks as a reader does that has heard of a confirm. */
static void *ask(void *argument) {
    wr_topic_row *row = argument;
    for (uint64_t heard = 0; heard < STEPS;) {
        heard = atomic_load_explicit(&told, memory_order_acquire);
        const uint64_t number = wr_topic_confirmed_commit(rows);
        CHECK(number >= heard);
        while (!wr_topic_is_shown(rows, number)) CHECK(wr_topic_wait_shown(rows, number, 60 * SECOND) == 0); /* as above */
        CHECK(atomic_load_explicit(&row->maximum, memory_order_relaxed) >= number);
    }
    return NULL;
}

static void *show_all(void *argument) {
    wr_topic_row *row = argument;
    for (uint64_t n = 1; n <= STEPS; n++) {
        while (wr_topic_confirmed_commit(rows) < n) sched_yield();
        atomic_store_explicit(&row->maximum, n, memory_order_relaxed);
        wr_topic_show(rows, n);
    }
    return NULL;
}

static void *wait_for_never(void *argument) {
    (void)argument;
    CHECK(wr_topic_wait_shown(rows, UINT64_MAX, 60 * SECOND) == 0);
    return NULL;
}

static void what_was_confirmed_is_shown(void) {
    pthread_t threads[READERS + 1];
    wr_topic_row_give(rows, 0, wr_topic_row_key(1, 0), 0, 0);
    wr_topic_row *row = wr_topic_row_at(rows, 0);
    wr_topic_rows_begin(rows, 0);
    for (uint32_t i = 0; i < READERS; i++) CHECK(pthread_create(&threads[i], NULL, ask, row) == 0);
    CHECK(pthread_create(&threads[READERS], NULL, show_all, row) == 0);
    for (uint64_t n = 1; n <= STEPS; n++) {
        wr_topic_confirm_from(rows, n);
        atomic_store_explicit(&told, n, memory_order_release);
        while (n % 3 == 0 && !wr_topic_is_shown(rows, n)) sched_yield();
    }
    for (uint32_t i = 0; i <= READERS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    wr_topic_wake *wake = wr_topic_shown_wake(rows);
    CHECK(!wake->waiters && (uint8_t *)wake >= (uint8_t *)(wr_topic_wake_of(rows, WR_TOPIC_WAKES - 1) + 1));
    CHECK(wr_topic_wait_shown(rows, STEPS + 1, 1) == ETIMEDOUT && wr_topic_wait_shown(rows, STEPS, 60 * SECOND) == 0);
    for (int held = 0; held < 2; held++) { /* what sleeps is woken when it is held up, and when the region ends */
        CHECK(pthread_create(threads, NULL, wait_for_never, NULL) == 0);
        while (!atomic_load(&wake->waiters)) sched_yield();
        if (held) wr_topic_hold(rows, WR_TOPIC_HELD_WORK, true);
        while (atomic_load(&wake->waiters)) {
            if (!held) wr_topic_rows_wake_all(rows);
            sched_yield();
        }
        CHECK(pthread_join(threads[0], NULL) == 0);
    }
    CHECK(wr_topic_wait_shown(rows, UINT64_MAX, 60 * SECOND) == 0); /* at once */
    wr_topic_hold(rows, WR_TOPIC_HELD_LOG, true);
    wr_topic_hold(rows, WR_TOPIC_HELD_WORK, false);
    CHECK(wr_topic_is_held(rows));
    wr_topic_hold(rows, WR_TOPIC_HELD_LOG, false);
    CHECK(!wr_topic_is_held(rows));
}

static _Atomic bool stop;

/* A row changes hands: each topic's maximum is its id. */
static void *look(void *argument) {
    (void)argument;
    while (!atomic_load(&stop)) {
        wr_topic_row *row = wr_topic_row_at(rows, 0);
        uint64_t key = atomic_load_explicit(&row->key, memory_order_acquire);
        uint64_t maximum = atomic_load_explicit(&row->maximum, memory_order_acquire);
        if (key && wr_topic_row_is(row, key)) CHECK(maximum == key >> 32);
    }
    return NULL;
}

static void numbers_of_another_topic_are_not_believed(void) {
    pthread_t threads[READERS];
    wr_topic_row_take(rows, 0);
    for (uint32_t i = 0; i < READERS; i++) CHECK(pthread_create(&threads[i], NULL, look, NULL) == 0);
    for (uint32_t id = 1; id < 20000; id++) {
        wr_topic_row_give(rows, 0, wr_topic_row_key(id, 0), 0, id);
        wr_topic_row_take(rows, 0);
    }
    atomic_store(&stop, true);
    for (uint32_t i = 0; i < READERS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
}

int main(void) {
    CHECK((rows = aligned_alloc(4096, 2 * sizeof *rows)));
    memset((void *)rows, 0, 2 * sizeof *rows);
    rows_are_found_by_their_key();
    no_wake_is_missed();
    what_was_confirmed_is_shown();
    numbers_of_another_topic_are_not_believed();
    free(rows);
    printf("rows_test: well\n");
    return 0;
}

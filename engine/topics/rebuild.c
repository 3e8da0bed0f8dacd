/* Derived files, made again. What it is: topics/rebuild.h. */
#define _GNU_SOURCE
#include "topics/rebuild.h"
#include "kernel/data_files.h"
#include "topics/folder.h"
#include "topics/log_search.h"
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#define CHECKPOINT "checkpoint"

typedef struct {
    int root;
    const wr_rebuild_options *options;
} rebuilding;

static int open_to_read(void *context, uint64_t base) { return wr_log_open_file(((const rebuilding *)context)->root, base, false); }
static int open_to_write(void *context, uint64_t base) { return wr_log_open_file(((const rebuilding *)context)->root, base, true); }

static int go_on(void *context, uint64_t position) {
    const rebuilding *r = context;
    return r->options->progress ? r->options->progress(r->options->context, position) : 0;
}

static int add_topics(wr_dispatch *dispatch, const wr_rebuild_options *options) {
    uint32_t row = 0;
    int error = 0;
    for (uint32_t i = 0; !error && i < options->topics_n; i++) {
        const wr_dispatch_topic *topic = &options->topics[i];
        uint32_t *rows = malloc(topic->queues_n * sizeof *rows);
        if (!rows) return ENOMEM;
        for (uint32_t queue = 0; queue < topic->queues_n; queue++) rows[queue] = row++;
        error = wr_dispatch_add(dispatch, topic, rows);
        free(rows);
    }
    return error;
}

static int make_again(wr_dispatch *dispatch, rebuilding *r, uint64_t log_file_bytes) {
    const wr_dispatch_log log = {.open = open_to_read, .progress = go_on, .context = r};
    wr_checkpoint_kind kind;
    wr_log_end end;
    int error = wr_dispatch_begin(dispatch, &kind);
    if (error) return error;
    do error = wr_dispatch_catch_up(dispatch, &log, r->options->first, &end);
    while (error == EUCLEAN);
    if (error) return error;
    if (end.damaged || end.foreign) return EUCLEAN;
    error = wr_log_settle(open_to_write, r, NULL, NULL, log_file_bytes, &end);
    return error ? error : wr_dispatch_checkpoint(dispatch, end.position);
}

int wr_rebuild(const wr_dispatch_place *place, const wr_rebuild_options *options, wr_dispatch_counts *counts) {
    rebuilding r = {place->root, options};
    int error = wr_data_unlink(place->root, CHECKPOINT);
    if (error && error != ENOENT) return error;
    error = wr_folder_sync(place->root, ".");
    if (error) return error;
    wr_dispatch *dispatch = wr_dispatch_new(place);
    if (!dispatch) return ENOMEM;
    error = add_topics(dispatch, options);
    if (!error) error = make_again(dispatch, &r, place->log_file_bytes);
    *counts = *wr_dispatch_counted(dispatch);
    wr_dispatch_free(dispatch);
    return error;
}

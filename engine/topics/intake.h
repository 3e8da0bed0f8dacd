/* What commands that append have in common, whatever they append: lengths, room in the log, and what is told afterwards. */
#ifndef WR_TOPICS_INTAKE_H
#define WR_TOPICS_INTAKE_H
#include "topics/state.h"

typedef enum { WR_TOPIC_DONE, WR_TOPIC_WAIT } wr_topic_outcome;

/* A command's lengths, read once. `skip`: bytes between the properties and the body of a record that is alone, which are of who else reads
 * its blob. */
typedef struct {
    uint32_t n;
    uint64_t skip;
    uint64_t bytes; /* of all records */
    wr_append_part parts[WR_APPEND_COUNT_MAX];
    uint32_t sizes[WR_APPEND_COUNT_MAX];
} wr_append_lengths;

/* The lengths of a command's records, of a topic whose name has topic_n bytes, each with so many bytes of properties more than it says; and
 * the bytes behind them. False: they do not add up. */
bool wr_append_measure(const wr_command *c, uint32_t topic_n, uint32_t more, const uint8_t *blob, wr_append_lengths *to, const uint8_t **data);
/* Room in the log for the command's records. NULL with *outcome. */
uint8_t *wr_append_reserve(wr_topic_server *s, wr_topic_link *l, wr_command *record, uint64_t bytes, uint64_t *position, wr_topic_outcome *outcome);
/* They are appended, and whoever follows knows of them. False: that one has no room yet. */
bool wr_append_put(wr_topic_server *s, const wr_topic_batch *batch, uint64_t bytes);
/* May records of a system's topic be appended? A commit is noted, whatever is in it. False: there is no room for that yet. */
bool wr_append_noted(wr_topic_server *s, uint64_t position, const uint8_t *bytes);
wr_topic_outcome wr_append_accepted(wr_topic_server *s, wr_topic_link *l, const wr_command *c, wr_command *record, uint64_t offset,
                                    uint64_t position);
/* What is answered otherwise than "done" the client looks for: it is told that there is something. */
wr_topic_outcome wr_append_answer(wr_topic_server *s, wr_topic_link *l, wr_command *record, uint32_t result);
wr_topic_outcome wr_append_evict(wr_topic_server *s, wr_topic_link *l, uint32_t reason);
#endif

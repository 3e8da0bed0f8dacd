/* Messages of a topic by key, the newest first, and by message id.
 *
 * What is found is the message that its consume queue has at its offset: bytes of a body that look like a record are none, nor are
 * records of an earlier topic of the name, half messages, or what no reader may see (yet, or any more). */
#ifndef WR_TOPICS_LOOKUP_H
#define WR_TOPICS_LOOKUP_H
#include "topics/reader.h"

/* The half message whose record lies at a position, with so many bytes, as the worker says. THERE; NONE: it is none of this topic's, or its file is
 * not there; or ERROR. */
wr_message_kind wr_topic_lookup_half(wr_topic_reader *reader, uint64_t position, uint32_t size, wr_record *record, const uint8_t **bytes, int *error);

typedef struct {
    wr_topic_reader *reader;
    wr_text key;
    int64_t since, until; /* store times, milliseconds since 1970, both included */
    uint64_t last;        /* position of the message found last */
    bool any;
    bool in_files, over; /* of a compacted topic: the index has no more, and files of newest records are looked in; nor have they */
    uint64_t newest;     /* below this position */
    uint64_t *given;     /* of a compacted topic: positions of what the index gave, falling. A pass may have it in a file by then */
    uint32_t given_n, given_max;
    uint64_t minima; /* the sum of its queues' minima when it began */
} wr_topic_lookup;

/* Look for a key, which stays where it is until the end. 0 or an errno. */
int wr_topic_lookup_begin(wr_topic_lookup *lookup, wr_topic_reader *reader, wr_text key, int64_t since, int64_t until);

/* The next message, whose bytes last until the next call. THERE; NONE: no more; DAMAGED: an index file is, or a message
 * (reader->damage; the next call goes on behind it); or ERROR. */
wr_message_kind wr_topic_lookup_next(wr_topic_lookup *lookup, wr_record *record, const uint8_t **bytes, int *error);

/* Whether it saw one moment of a compacted topic. Else a pass ended meanwhile: a message that was alive all the time may have been left out, for one
 * that took its place lies where the look-up had been before. Then it is made anew. */
bool wr_topic_lookup_whole(const wr_topic_lookup *lookup);

/* Give back its memory. */
void wr_topic_lookup_end(wr_topic_lookup *lookup);

/* Where the messages of a look-up go. `anew`: what was put before is forgotten. `put`: one more, whose bytes last until the next; 0 or an errno. */
typedef struct {
    void *context;
    void (*anew)(void *context);
    int (*put)(void *context, const wr_record *record, const uint8_t *bytes);
} wr_topic_lookup_to;

/* All messages of a key, the newest first, at most `limit`, as of one moment: made anew while it is not whole, but for a topic whose passes end
 * faster than it does. *damaged: something is (reader->damage); `strict`: then it has ended there. 0 or an errno. */
int wr_topic_lookup_all(wr_topic_reader *reader, wr_text key, int64_t since, int64_t until, uint64_t limit, bool strict, const wr_topic_lookup_to *to,
                        bool *damaged);

/* The message whose record begins at a position of the log and, if `store_host` is not NULL, has that one. THERE, NONE, DAMAGED or ERROR. */
wr_message_kind wr_topic_lookup_at(wr_topic_reader *reader, uint64_t position, const uint8_t *store_host, uint32_t store_host_bytes,
                                   wr_record *record, const uint8_t **bytes, int *error);
#endif

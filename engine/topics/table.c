/* The topics that a server knows. Declared in topics/table.h. */
#include "topics/table.h"
#include "topics/hash.h"

static void topic_free(wr_topic *topic) {
    if (!topic) return;
    free(topic->name);
    free(topic->queues);
    free(topic);
}

wr_topic *wr_topic_find(const wr_topic_server *s, uint32_t id) {
    const uint64_t *found = wr_map_find(&s->topics, id, 0);
    return found ? (wr_topic *)(uintptr_t)*found : NULL;
}

wr_topic *wr_topic_declare(wr_topic_server *s, uint32_t id, const char *name, uint32_t name_length, uint32_t queues_n) {
    wr_topic *topic = wr_topic_find(s, id);
    if (topic) return topic;
    uint64_t *place = wr_map_put(&s->topics, id, 0);
    topic = place ? calloc(1, sizeof *topic) : NULL;
    if (topic) {
        *topic = (wr_topic){.id = id, .queues_n = queues_n, .key_hash = wr_key_hash_topic(name, name_length), .name_length = name_length};
        topic->name = malloc(name_length);
        topic->queues = calloc(queues_n, sizeof *topic->queues);
    }
    if (!topic || !topic->name || !topic->queues) {
        topic_free(topic);
        if (place) wr_map_remove(&s->topics, id, 0);
        return NULL;
    }
    memcpy(topic->name, name, name_length);
    *place = (uint64_t)(uintptr_t)topic;
    return topic;
}

void wr_topic_drop(wr_topic_server *s, uint32_t id) {
    topic_free(wr_topic_find(s, id));
    wr_map_remove(&s->topics, id, 0);
}

void wr_topics_free(wr_topic_server *s) {
    for (uint64_t i = 0; i < s->topics.size; i++)
        if (s->topics.rows[i].used) topic_free((wr_topic *)(uintptr_t)s->topics.rows[i].value);
    free(s->topics.rows);
}

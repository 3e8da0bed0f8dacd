#include "port.h"
#include <stdlib.h>
#include <string.h>

/* Runs of commands of one server share one entry, so that a batch costs few; short enough, in commands and in bytes,
 * to free space early. */
#define RUN_MAX 64
#define RUN_SHARE 16 /* of the arena */

int wr_port_init(wr_port *port, wr_superblock *super, void *region, uint64_t region_bytes, uint32_t slot,
                 uint32_t generation, uint64_t client_epoch) {
    memset(port, 0, sizeof *port);
    wr_geometry g = wr_geometry_of_client(super, slot);
    int error = wr_view_init(&port->view, region, region_bytes, &g);
    if (error) return error;
    if (!g.delivery_slots) return EINVAL;
    port->super = super;
    port->slot = slot;
    port->generation = generation;
    port->client_epoch = client_epoch;
    port->uses_size = 1024;
    port->uses = malloc(port->uses_size * sizeof *port->uses);
    if (!port->uses) return ENOMEM;
    wr_client *client = port->view.client;
    client->layout_hash = super->layout_hash;
    client->client_epoch = client_epoch;
    client->servers_n = g.servers_n;
    client->magic = WR_CLIENT_MAGIC;
    return 0;
}

void wr_port_free(wr_port *port) {
    free(port->uses);
    port->uses = NULL;
}

wr_command *wr_port_prepare(wr_port *port, uint32_t server, uint64_t *sequence) {
    wr_link *link = &port->view.links[server];
    uint64_t next = port->prepared[server];
    if (next - port->head_seen[server] >= port->view.g.ring_records) {
        /* SYNC head: pairs with the server's release; what the server read before is done with. */
        port->head_seen[server] = atomic_load_explicit(&link->head, memory_order_acquire);
        if (next - port->head_seen[server] >= port->view.g.ring_records) return NULL;
    }
    if (atomic_load_explicit(&link->evicted, memory_order_relaxed)) return NULL;
    wr_command *command = wr_view_command(&port->view, server, next);
    memset((void *)command, 0, sizeof *command);
    *sequence = next;
    port->prepared[server] = next + 1;
    return command;
}

void wr_port_abandon(wr_port *port, uint32_t server, uint64_t sequence) {
    port->prepared[server] = sequence;
    /* A use of an abandoned command would wait for a head that may never come: let it wait for what is submitted. */
    for (uint64_t i = port->uses_first; i != port->uses_next; i++) {
        wr_blob_use *use = &port->uses[i & (port->uses_size - 1)];
        if (use->server == server && use->sequence >= sequence) {
            use->sequence = sequence ? sequence - 1 : UINT64_MAX;
            if (use->first > use->sequence) use->first = use->sequence;
        }
    }
}

bool wr_port_submit(wr_port *port, uint32_t server) {
    wr_link *link = &port->view.links[server];
    if (atomic_load_explicit(&link->tail, memory_order_relaxed) == port->prepared[server]) return false;
    /* SYNC command-visible: pairs with the server's acquire load of tail. */
    atomic_store_explicit(&link->tail, port->prepared[server], memory_order_release);
    /* Both stores are one process, which sleeps on the persistent one's word. */
    uint32_t bell = server == WR_SERVER_STORE_TRANSIENT ? WR_SERVER_STORE_PERSISTENT : server;
    wr_bell_ring(&wr_superblock_server(port->super, bell)->sleeping);
    return true;
}

void wr_port_reclaim(wr_port *port) {
    while (port->uses_first != port->uses_next) {
        wr_blob_use *use = &port->uses[port->uses_first & (port->uses_size - 1)];
        if (use->sequence != UINT64_MAX && port->head_seen[use->server] <= use->sequence) {
            uint64_t head = atomic_load_explicit(&port->view.links[use->server].head, memory_order_acquire);
            port->head_seen[use->server] = head;
            if (head <= use->sequence) return;
        }
        port->uses_first++;
        /* Entries of one blob for several servers have the same end: it is free only after the last of them. */
        bool shared = port->uses_first != port->uses_next &&
                      port->uses[port->uses_first & (port->uses_size - 1)].end == use->end;
        if (!shared) port->arena_freed = use->end;
    }
    if (port->arena_freed == port->arena_next && port->arena_next & (port->view.g.arena_bytes - 1)) {
        /* All free: start over at the arena's beginning, whose pages are warm. */
        port->arena_next = (port->arena_next + port->view.g.arena_bytes - 1) & ~(port->view.g.arena_bytes - 1);
        port->arena_freed = port->arena_next;
    }
}

int wr_port_alloc(wr_port *port, uint64_t length, uint64_t *position, uint8_t **at) {
    uint64_t size = port->view.g.arena_bytes;
    uint64_t needed = (length + 7) & ~7ull;
    if (length > size / 2 || needed > size / 2) return EMSGSIZE; /* the former: rounding up may wrap */
    for (int attempt = 0;; attempt++) {
        uint64_t start = port->arena_next;
        uint64_t room = size - (start & (size - 1));
        if (needed > room) start += room; /* a blob never wraps */
        if (start + needed - port->arena_freed <= size) {
            port->arena_next = start + needed;
            *position = start;
            *at = port->view.arena + (start & (size - 1));
            return 0;
        }
        if (attempt) return EAGAIN;
        wr_port_reclaim(port);
    }
}

int wr_port_use_run(wr_port *port, uint32_t server, uint64_t first, uint64_t sequence) {
    if (port->uses_first != port->uses_next) {
        wr_blob_use *last = &port->uses[(port->uses_next - 1) & (port->uses_size - 1)];
        bool alone = port->uses_next - port->uses_first < 2 ||
                     port->uses[(port->uses_next - 2) & (port->uses_size - 1)].end != last->end;
        uint64_t start = port->uses_next - port->uses_first < 2
                             ? port->arena_freed
                             : port->uses[(port->uses_next - 2) & (port->uses_size - 1)].end;
        bool small = port->arena_next - start <= port->view.g.arena_bytes / RUN_SHARE;
        if (alone && small && last->server == server && last->end != port->arena_next && sequence - last->first < RUN_MAX &&
            first >= last->first) {
            last->end = port->arena_next;
            last->sequence = sequence;
            return 0;
        }
    }
    if (port->uses_next - port->uses_first == port->uses_size) {
        wr_blob_use *bigger = malloc(2 * (size_t)port->uses_size * sizeof *bigger);
        if (!bigger) return ENOMEM;
        for (uint64_t i = port->uses_first; i != port->uses_next; i++)
            bigger[i & (2 * (uint64_t)port->uses_size - 1)] = port->uses[i & (port->uses_size - 1)];
        free(port->uses);
        port->uses = bigger;
        port->uses_size *= 2;
    }
    port->uses[port->uses_next++ & (port->uses_size - 1)] =
        (wr_blob_use){.end = port->arena_next, .first = first, .sequence = sequence, .server = server};
    return 0;
}

int wr_port_use(wr_port *port, uint32_t server, uint64_t sequence) { return wr_port_use_run(port, server, sequence, sequence); }

/* Ringing a client's doorbell: a datagram socket of its own, DIR/doorbells/<slot>-<generation>, that its event loop watches beside all
 * its other sockets. So the loop wakes at once, and no thread that sleeps on a futex has to wake first and tell it.
 *
 * A server's working directory is DIR. It connects when it rings a client for the first time, and rings by one byte.
 *
 * Trust. The socket is the client's: what a server sends has no content, and a send never blocks, whatever the other end does. A name
 * that is no socket, a symbolic link above all, is not followed, nor is the folder when it is one. A server keeps one descriptor for each
 * client that has a doorbell, and leaves a quarter of those that it may have for files.
 * Fallback. When there is no such socket, or nobody listens any more, the server wakes who sleeps on the word, for ever after: a client
 * in another mount namespace, or on a file system without sockets, has a thread that does.
 */
#ifndef WR_DOORBELL_H
#define WR_DOORBELL_H
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define WR_DOORBELLS "doorbells" /* the folder, in DIR */

typedef struct {
    uint32_t slot, generation;
    _Atomic int fd; /* connected to it; WR_DOORBELL_UNKNOWN: not tried yet, WR_DOORBELL_NONE: it has none */
} wr_doorbell;

enum { WR_DOORBELL_NONE = -1, WR_DOORBELL_UNKNOWN = -2 };

/* Of the client in this slot. By the thread that opens the view, before anybody rings. */
void wr_doorbell_of(wr_doorbell *d, uint32_t slot, uint32_t generation);
/* False: it cannot be rung. Any thread. */
bool wr_doorbell_ring(wr_doorbell *d);
/* The client is gone; nobody rings any more. */
void wr_doorbell_end(wr_doorbell *d);
#endif

/* The folders of consume queues: consumequeue/<topic>/<queue>/. What nobody needs any more is removed, files of ours alone.
 *
 * Crash points: a folder that was removed in part is found, and removed, by the next sweep. */
#ifndef WR_TOPICS_QUEUE_FOLDERS_H
#define WR_TOPICS_QUEUE_FOLDERS_H
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

/* Path of a queue's folder, below the folder of topics. */
void wr_queue_folder(const char *topic, uint32_t queue, char path[PATH_MAX]);

/* Remove the files of a folder; it stays. 0 or an errno. */
int wr_queue_folder_empty(int root, const char *path);

/* Remove all of a topic's folders. What is not ours stays, and its folder with it. 0 or an errno. */
int wr_topic_folder_remove(int root, const char *topic);

/* Remove those of topics that `keep` does not want. 0 or an errno. */
int wr_topic_folders_sweep(int root, bool (*keep)(void *context, const char *topic, uint32_t n), void *context);
#endif

/* Look-ups over the files of a key index (topics/index_files.h), in any process.
 *
 * A reader maps. Before each look-up it asks for a file's size, so that a file that was cut before is damage and no signal.
 * What remains: a file that is cut while it is looked at, a disk that fails, and on tmpfs no memory for a hole that is read,
 * end the reader by SIGBUS. A file that is removed stays readable. Nothing in a file is believed (topics/key_index.h). */
#ifndef WR_TOPICS_INDEX_READER_H
#define WR_TOPICS_INDEX_READER_H
#include "topics/index_link.h"
#include "topics/key_index.h"

typedef struct wr_index_reader wr_index_reader;
/* Of one thread. `ordered`: store times never step back in this log. NULL: no memory, or counts that cannot be. */
wr_index_reader *wr_index_reader_new(int root, const char *folder, uint32_t slots_n, uint32_t entries_n, bool ordered);
void wr_index_reader_free(wr_index_reader *reader);

/* Look for a hash among the entries whose store time may lie in since … until (milliseconds since 1970, both included). 0 or an errno. */
int wr_index_reader_find(wr_index_reader *reader, uint32_t key_hash, int64_t since, int64_t until);

/* From now on a file of this name (as a number; 0: of none) must be there, or newer ones: the writer said so before. */
void wr_index_reader_expect(wr_index_reader *reader, uint64_t newest);

/* The next one, newest first: *code is WR_KEY_FOUND with *entry, WR_KEY_END, or what is wrong with a file (wr_index_reader_file): the
 * next call goes on with the file before it. WR_KEY_MISSING: that one is not there. Whether it has to be the log says: its keys are of records up to
 * a position (wr_index_reader_missing_end), and may have gone with them. Whether the record has the key and the time the log says: so who wants so many of a key
 * asks until it has them. 0 or an errno. */
int wr_index_reader_next(wr_index_reader *reader, wr_key_entry *entry, wr_key_code *code);
const char *wr_index_reader_file(const wr_index_reader *reader);
uint64_t wr_index_reader_missing_end(const wr_index_reader *reader);
#endif

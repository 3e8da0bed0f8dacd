package warren.spark;

import java.io.IOException;
import java.nio.file.Path;

/** Units of a consume queue: where the n-th message of a queue lies in the log. The format: docs/formats.md. */
final class Units extends NumberedFiles {
    static final int UNIT_BYTES = 20;
    /** The size of a unit of which there is no message. */
    static final int EMPTY = 0x7fffffff;
    private static final int READ = 4096;

    private final byte[] bytes = new byte[READ * UNIT_BYTES];
    /** At hand: `n` units from the one of the offset `first` on. */
    private long first;
    private int n;

    Units(Path folder, int fileEntries) {
        super(folder, (long) fileEntries * UNIT_BYTES);
    }

    /** Have the unit of an offset, and of those behind it below `end`, at hand. False: no file has a place for it. */
    boolean have(long offset, long end) throws IOException {
        if (offset >= first && offset < first + n) {
            return true;
        }
        n = 0;
        long place = offset * UNIT_BYTES;
        int most = (int) Math.min(Math.min(READ, end - offset), left(place) / UNIT_BYTES);
        int read = read(place, bytes, most * UNIT_BYTES);
        first = offset;
        n = Math.max(0, read) / UNIT_BYTES;
        return n > 0;
    }

    /** How many are at hand from an offset on that is, below `end`. */
    int atHand(long offset, long end) {
        return (int) Math.min(first + n - offset, end - offset);
    }

    long position(long offset) {
        return (long) Bytes.LONG.get(bytes, (int) (offset - first) * UNIT_BYTES);
    }

    int size(long offset) {
        return (int) Bytes.INT.get(bytes, (int) (offset - first) * UNIT_BYTES + 8);
    }

    long tagsCode(long offset) {
        return (long) Bytes.LONG.get(bytes, (int) (offset - first) * UNIT_BYTES + 12);
    }

    @Override
    void forget() throws IOException {
        super.forget();
        n = 0;
    }
}

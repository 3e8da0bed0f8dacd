package warren.spark;

import java.io.Closeable;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;

/**
 * Units of a consume queue: where the n-th message of a queue lies in the log. The format: docs/formats.md.
 *
 * <p>Read, never mapped: a file that is cut while it is read is an end, and no signal.
 */
final class Units implements Closeable {
    static final int UNIT_BYTES = 20;
    /** The size of a unit of which there is no message. */
    static final int EMPTY = 0x7fffffff;
    private static final int READ = 4096;

    private final Path folder;
    private final int fileEntries;
    private final byte[] bytes = new byte[READ * UNIT_BYTES];
    private FileChannel file;
    private long base = -1;
    private long first;
    private int n;
    long bytesRead;

    Units(Path folder, int fileEntries) {
        this.folder = folder;
        this.fileEntries = fileEntries;
    }

    /** Have the unit of an offset, and of those behind it below `end`, at hand. False: no file has a place for it. */
    boolean have(long offset, long end) throws IOException {
        if (offset >= first && offset < first + n) {
            return true;
        }
        long fileFirst = offset - offset % fileEntries;
        if (file == null || base != fileFirst) {
            close();
            try {
                file = FileChannel.open(folder.resolve(String.format("%020d", fileFirst * UNIT_BYTES)),
                        StandardOpenOption.READ);
            } catch (NoSuchFileException gone) {
                return false;
            }
            base = fileFirst;
        }
        int most = (int) Math.min(Math.min(READ, end - offset), fileFirst + fileEntries - offset);
        ByteBuffer to = ByteBuffer.wrap(bytes, 0, most * UNIT_BYTES);
        Log.read(file, to, (offset - fileFirst) * UNIT_BYTES);
        bytesRead += to.position();
        first = offset;
        n = to.position() / UNIT_BYTES;
        return n > 0;
    }

    /** How many are at hand from an offset on that is. */
    int left(long offset) {
        return (int) (first + n - offset);
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

    /** Nothing that was opened or read before is used again. */
    void forget() throws IOException {
        close();
        n = 0;
    }

    @Override
    public void close() throws IOException {
        if (file != null) {
            file.close();
            file = null;
        }
        base = -1;
    }
}

package warren.spark;

import java.io.Closeable;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;

/**
 * Files of one size that follow each other in a folder, each named by the place of its first byte among all of them: the
 * commit log, a consume queue. One of them is open at a time, and a part of it is at hand.
 *
 * <p>Read, never mapped: retention cuts the files that it removes, which would be a signal to whoever has them mapped.
 */
class NumberedFiles implements Closeable {
    private final Path folder;
    private final long fileBytes;
    private FileChannel file;
    private long fileFirst = -1;
    private long bytesRead;

    NumberedFiles(Path folder, long fileBytes) {
        this.folder = folder;
        this.fileBytes = fileBytes;
    }

    /** Bytes that the file of a place has room for from there on. */
    final long left(long place) {
        return fileBytes - place % fileBytes;
    }

    /** All that was read from these files. */
    final long bytesRead() {
        return bytesRead;
    }

    /**
     * Read from a place on, within its file, into the first bytes of an array: how many, which are fewer than wanted at the
     * file's end; −1: there is no such file.
     */
    final int read(long place, byte[] to, int wanted) throws IOException {
        long first = place - place % fileBytes;
        if (file == null || fileFirst != first) {
            close();
            try {
                file = FileChannel.open(folder.resolve(String.format("%020d", first)), StandardOpenOption.READ);
            } catch (NoSuchFileException gone) {
                return -1;
            }
            fileFirst = first;
        }
        ByteBuffer room = ByteBuffer.wrap(to, 0, wanted);
        long at = place - first;
        while (room.hasRemaining()) {
            int n = file.read(room, at);
            if (n < 0) {
                break;
            }
            at += n;
        }
        bytesRead += room.position();
        return room.position();
    }

    /** Nothing that was opened or read before is used again. */
    void forget() throws IOException {
        close();
    }

    @Override
    public final void close() throws IOException {
        if (file != null) {
            file.close();
            file = null;
        }
        fileFirst = -1;
    }
}

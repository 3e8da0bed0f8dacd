package warren.spark;

import java.io.Closeable;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;

/**
 * Bytes of the commit log, through a window that stays in the processor's cache until they were checked and copied.
 *
 * <p>Read, never mapped: retention cuts the files that it removes, which would be a signal to whoever has them mapped.
 */
final class Log implements Closeable {
    static final int WINDOW_BYTES = 256 << 10;

    private final Path folder;
    private final long fileBytes;
    private FileChannel file;
    private long base = -1;
    /** The window: `n` bytes of the log from `from` on. */
    byte[] bytes = new byte[WINDOW_BYTES];
    private long from;
    private int n;
    long bytesRead;

    Log(Path folder, long fileBytes) {
        this.folder = folder;
        this.fileBytes = fileBytes;
    }

    /** Where `size` bytes at a position are in the window, if they are; else −1. */
    int at(long position, int size) {
        long at = position - from;
        return at >= 0 && at + size <= n ? (int) at : -1;
    }

    /** Bytes that the file of a position has room for behind it. */
    long left(long position) {
        return fileBytes - position % fileBytes;
    }

    /** Fill the window with `wanted` bytes of a file from a position on. False: it is gone, or ends before `least`. */
    boolean load(long position, int wanted, int least) throws IOException {
        n = 0;
        long fileFirst = position - position % fileBytes;
        if (file == null || base != fileFirst) {
            close();
            try {
                file = FileChannel.open(folder.resolve(String.format("%020d", fileFirst)), StandardOpenOption.READ);
            } catch (NoSuchFileException gone) {
                return false;
            }
            base = fileFirst;
        }
        if (wanted > bytes.length) {
            bytes = new byte[wanted];
        } else if (bytes.length > WINDOW_BYTES && wanted <= WINDOW_BYTES) {
            bytes = new byte[WINDOW_BYTES];
        }
        ByteBuffer to = ByteBuffer.wrap(bytes, 0, wanted);
        read(file, to, position - fileFirst);
        bytesRead += to.position();
        if (to.position() < least) {
            return false;
        }
        from = position;
        n = to.position();
        return true;
    }

    /** As many bytes as there are, up to the buffer's limit. */
    static void read(FileChannel file, ByteBuffer to, long at) throws IOException {
        while (to.hasRemaining()) {
            int n = file.read(to, at);
            if (n < 0) {
                return;
            }
            at += n;
        }
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

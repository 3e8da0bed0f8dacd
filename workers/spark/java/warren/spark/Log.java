package warren.spark;

import java.io.IOException;
import java.nio.file.Path;

/** Bytes of the commit log, through a window that stays in the processor's cache until they were checked and copied. */
final class Log extends NumberedFiles {
    static final int WINDOW_BYTES = 256 << 10;

    /** The window: `n` bytes of the log from `from` on. */
    byte[] bytes = new byte[WINDOW_BYTES];
    private long from;
    private int n;

    Log(Path folder, long fileBytes) {
        super(folder, fileBytes);
    }

    /** Where `size` bytes at a position are in the window, if they are; else −1. */
    int at(long position, int size) {
        long at = position - from;
        return at >= 0 && at + size <= n ? (int) at : -1;
    }

    /** Fill the window with `wanted` bytes of a file from a position on. False: it is gone, or ends before `least`. */
    boolean load(long position, int wanted, int least) throws IOException {
        n = 0;
        if (wanted > bytes.length) {
            bytes = new byte[wanted];
        } else if (bytes.length > WINDOW_BYTES && wanted <= WINDOW_BYTES) {
            bytes = new byte[WINDOW_BYTES];
        }
        int read = read(position, bytes, wanted);
        if (read < least) {
            return false;
        }
        from = position;
        n = read;
        return true;
    }

    @Override
    void forget() throws IOException {
        super.forget();
        n = 0;
    }
}

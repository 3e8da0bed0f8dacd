package warren.spark;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;

/** Numbers in bytes, and text. All numbers of Warren's files are big-endian. */
final class Bytes {
    static final VarHandle SHORT = MethodHandles.byteArrayViewVarHandle(short[].class, ByteOrder.BIG_ENDIAN);
    static final VarHandle INT = MethodHandles.byteArrayViewVarHandle(int[].class, ByteOrder.BIG_ENDIAN);
    static final VarHandle LONG = MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.BIG_ENDIAN);
    private static final long HIGH = 0x8080808080808080L;

    private Bytes() {}

    static boolean isUtf8(byte[] bytes, int from, int to) {
        int at = from;
        while (at < to) {
            if (to - at >= 8 && ((long) LONG.get(bytes, at) & HIGH) == 0) {
                at += 8;
                continue;
            }
            int n = character(bytes, at, to);
            if (n == 0) {
                return false;
            }
            at += n;
        }
        return true;
    }

    /** Bytes of the character at a place; 0: there is none. */
    private static int character(byte[] bytes, int at, int to) {
        int first = bytes[at] & 0xff;
        if (first < 0x80) {
            return 1;
        }
        int n = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
        if (first < 0xc2 || first > 0xf4 || n > to - at) {
            return 0;
        }
        // What the second byte may be keeps out forms that are too long, surrogates, and what is above U+10FFFF.
        int least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
        int most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
        int second = bytes[at + 1] & 0xff;
        if (second < least || second > most) {
            return 0;
        }
        for (int i = 2; i < n; i++) {
            if ((bytes[at + i] & 0xc0) != 0x80) {
                return 0;
            }
        }
        return n;
    }
}

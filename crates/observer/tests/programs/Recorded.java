import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import jdk.jfr.Category;
import jdk.jfr.DataAmount;
import jdk.jfr.Event;
import jdk.jfr.Label;
import jdk.jfr.Name;
import jdk.jfr.Recording;
import jdk.jfr.Timespan;
import jdk.jfr.Timestamp;

/** Allocates for the given milliseconds at many stack depths, and emits events with a field of each type. */
public class Recorded {
    @Name("test.Everything")
    @Label("Everything")
    @Category({"Test", "All of it"})
    static class Everything extends Event {
        boolean yes;
        byte small;
        short shorter;
        char letter;
        int number;
        @DataAmount(DataAmount.BYTES) long bytes;
        float ratio;
        double exact;
        String text;
        Class<?> type;
        Thread thread;
        @Timespan(Timespan.MILLISECONDS) long millis;
        @Timestamp(Timestamp.MILLISECONDS_SINCE_EPOCH) long moment;
    }

    static volatile Object sink;
    static final List<ByteBuffer> KEPT = new ArrayList<>();
    static final String[] TEXTS = {
        null, "", "a", "plain ASCII", "tab\tquote\" back\\slash", "gr\u00fc\u00dfe", "\u043f\u0440\u0438\u0432\u0435\u0442",
        "\uD83D\uDEA2 ship", "x".repeat(20), "long ".repeat(400), "\u00e9".repeat(17)
    };
    static final Class<?>[] TYPES = {null, String.class, int[].class, Recorded.class, Thread.State.class, long.class};

    static int deep(int depth, int width) {
        if (depth == 0) {
            sink = new byte[width];
            return width;
        }
        return deep(depth - 1, width) + 1;
    }

    static void everything(int i) {
        Everything event = new Everything();
        long[] edges = {0, 1, -1, 63, 64, 127, 128, 255, 256, 32767, -32768, Integer.MAX_VALUE, Integer.MIN_VALUE,
            1L << 35, 1L << 55, 1L << 56, Long.MAX_VALUE, Long.MIN_VALUE};
        long edge = edges[i % edges.length];
        event.begin();
        event.yes = i % 2 == 0;
        event.small = (byte) edge;
        event.shorter = (short) edge;
        event.letter = (char) (i % 3 == 0 ? 'A' + i % 26 : 0x3b1 + i % 20);
        event.number = (int) edge;
        event.bytes = edge;
        event.ratio = i / 7f;
        event.exact = edge * 1.5;
        event.text = TEXTS[i % TEXTS.length];
        event.type = TYPES[i % TYPES.length];
        event.thread = i % 4 == 0 ? null : Thread.currentThread();
        event.millis = i;
        event.moment = 1_700_000_000_000L + i;
        event.commit();
    }

    /** Minimum number of rounds: on a busy machine, the time may be over before the thread gets a CPU. */
    static final int LEAST = 8000;

    static void work(long end, int seed) {
        for (int i = seed; i < LEAST || System.nanoTime() < end; i++) {
            deep(3 + i % 40, 1000 + i % 50 * 100);
            if (i % 500 == seed) everything(i / 500);
            if (i % 2000 == seed) {
                synchronized (KEPT) {
                    if (KEPT.size() < 64) KEPT.add(ByteBuffer.allocateDirect(1 << 18));
                }
                try {
                    Thread.sleep(15);
                } catch (InterruptedException e) {
                    return;
                }
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        long end = System.nanoTime() + Long.parseLong(arguments[0]) * 1_000_000;
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            int seed = i;
            threads.add(new Thread(() -> work(end, seed), "worker-\u00fc-\u2713-" + i));
        }
        threads.forEach(Thread::start);
        for (int i = 0; i < 200; i++) everything(i);
        System.out.println("READY");
        // A recording that starts or stops makes the JVM begin a new chunk.
        for (int i = 1; i < arguments.length; i++) {
            try (Recording recording = new Recording()) {
                recording.start();
                Thread.sleep(Long.parseLong(arguments[i]));
            }
        }
        work(end, 7);
        for (Thread thread : threads) thread.join();
    }
}

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Field;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import sun.misc.Unsafe;

/**
 * Busy THREADS MAPPINGS REST: that many threads that compute and allocate, each a millisecond at a time with REST milliseconds
 * between, and that many mapped pages.
 * Prints `ready`, then answers the commands on its standard input with one line each:
 *   begin        a window begins: `begun`
 *   end          the window ends: `MILLISECONDS LARGEST GAPS`: its length, the longest gap in which no thread made progress, and
 *                the sum of all gaps over 5 ms, all in milliseconds
 *   pairs MS     malloc+free pairs by Unsafe on the main thread for MS milliseconds: nanoseconds for one pair
 */
public class Busy {
    static final Unsafe UNSAFE = unsafe();
    static final List<MappedByteBuffer> MAPPINGS = new ArrayList<>();
    static final long OVER = 5_000_000;
    /** When any thread last made progress. */
    static final AtomicLong LAST = new AtomicLong(System.nanoTime());
    static final AtomicLong LARGEST = new AtomicLong(), GAPS = new AtomicLong();

    static Unsafe unsafe() {
        try {
            Field field = Unsafe.class.getDeclaredField("theUnsafe");
            field.setAccessible(true);
            return (Unsafe) field.get(null);
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException(e);
        }
    }

    static void work(CountDownLatch started, int rest) throws InterruptedException {
        started.await();
        long state = Thread.currentThread().getId(), spell = System.nanoTime();
        // The threads don't begin at the same moment.
        if (rest > 0) Thread.sleep(state * 7919 % rest);
        for (;;) {
            if (rest > 0 && System.nanoTime() - spell > 1_000_000) {
                Thread.sleep(rest);
                spell = System.nanoTime();
            }
            for (int i = 0; i < 20; i++) {
                long block = UNSAFE.allocateMemory(16 + (state & 511));
                UNSAFE.putByte(block, (byte) 1);
                for (int j = 0; j < 50; j++) state = state * 6364136223846793005L + 1442695040888963407L;
                UNSAFE.freeMemory(block);
            }
            tick();
            if (state == 0) state = 1;
        }
    }

    static void tick() {
        // A thread may lose its processor between the two calls: LAST never goes back.
        long now = System.nanoTime(), gap = now - LAST.getAndAccumulate(now, Math::max);
        if (gap > OVER) GAPS.addAndGet(gap);
        if (gap > LARGEST.get()) LARGEST.accumulateAndGet(gap, Math::max);
    }

    static double pairs(long milliseconds) {
        long begin = System.nanoTime(), end = begin + milliseconds * 1_000_000, pairs = 0, now;
        do {
            for (int i = 0; i < 1000; i++) {
                long block = UNSAFE.allocateMemory(512);
                UNSAFE.putByte(block, (byte) 1);
                UNSAFE.freeMemory(block);
            }
            pairs += 1000;
            now = System.nanoTime();
        } while (now < end);
        return (now - begin) / (double) pairs;
    }

    public static void main(String[] arguments) throws Exception {
        Path file = Files.createTempFile("busy", ".data");
        try (FileChannel channel = FileChannel.open(file, StandardOpenOption.READ, StandardOpenOption.WRITE)) {
            for (int i = 0; i < Integer.parseInt(arguments[1]); i++) {
                // Every other page: the kernel can't join neighbours.
                MappedByteBuffer page = channel.map(FileChannel.MapMode.READ_WRITE, i * 8192L, 4096);
                page.put(0, (byte) 1);
                MAPPINGS.add(page);
            }
        }
        Files.delete(file);
        // All that main needs is loaded before the crowd takes the processors.
        pairs(300);
        String.format("%.3f %.3f %.3f%n", 1.0, 1.0, 1.0);
        int rest = Integer.parseInt(arguments[2]);
        CountDownLatch started = new CountDownLatch(1);
        for (int i = 0; i < Integer.parseInt(arguments[0]); i++) {
            Thread thread = new Thread(() -> {
                try {
                    work(started, rest);
                } catch (InterruptedException e) {
                    throw new IllegalStateException(e);
                }
            }, "busy-" + i);
            thread.setDaemon(true);
            thread.start();
        }
        System.out.println("ready");
        System.out.flush();
        started.countDown();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        long begin = 0;
        for (String line; (line = in.readLine()) != null; ) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "begin" -> {
                    begin = System.nanoTime();
                    LAST.accumulateAndGet(begin, Math::max);
                    GAPS.set(0);
                    LARGEST.set(0);
                    System.out.println("begun");
                }
                case "end" -> {
                    double length = (System.nanoTime() - begin) / 1e6;
                    System.out.printf("%.3f %.3f %.3f%n", length, LARGEST.get() / 1e6, GAPS.get() / 1e6);
                }
                case "pairs" -> System.out.printf("%.3f%n", pairs(Long.parseLong(words[1])));
                default -> System.exit(2);
            }
            System.out.flush();
        }
    }
}

import java.lang.reflect.Field;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import sun.misc.Unsafe;

/**
 * Unsafe allocate, one store, free: what a HotSpot does for off-heap memory, in a loop.
 * Usage: Pairs THREADS SIZE MILLISECONDS. Prints wall time in nanoseconds, divided by the pairs of all threads.
 */
public class Pairs {
    static final Unsafe UNSAFE = unsafe();
    static volatile boolean stop;

    static Unsafe unsafe() {
        try {
            Field field = Unsafe.class.getDeclaredField("theUnsafe");
            field.setAccessible(true);
            return (Unsafe) field.get(null);
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException(e);
        }
    }

    static long loop(long size, long most) {
        long pairs = 0;
        while (!stop && pairs < most) {
            for (int i = 0; i < 100; i++) {
                long block = UNSAFE.allocateMemory(size);
                UNSAFE.putByte(block, (byte) 1);
                UNSAFE.freeMemory(block);
            }
            pairs += 100;
        }
        return pairs;
    }

    public static void main(String[] arguments) throws InterruptedException {
        int threads = Integer.parseInt(arguments[0]);
        long size = Long.parseLong(arguments[1]);
        long milliseconds = Long.parseLong(arguments[2]);
        loop(size, 200_000);
        AtomicLong pairs = new AtomicLong();
        CountDownLatch begin = new CountDownLatch(1), end = new CountDownLatch(threads);
        for (int i = 0; i < threads; i++) {
            new Thread(() -> {
                try {
                    begin.await();
                } catch (InterruptedException e) {
                    throw new IllegalStateException(e);
                }
                pairs.addAndGet(loop(size, Long.MAX_VALUE));
                end.countDown();
            }).start();
        }
        long start = System.nanoTime();
        begin.countDown();
        Thread.sleep(milliseconds);
        stop = true;
        end.await();
        System.out.printf("%.3f%n", (System.nanoTime() - start) / (double) pairs.get());
    }
}

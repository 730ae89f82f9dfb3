import java.util.concurrent.CountDownLatch;
import java.util.concurrent.locks.LockSupport;

/** Starts COUNT platform threads that all wait, prints `all wait`, and waits until it is killed. */
public class Threads {
    public static void main(String[] arguments) throws Exception {
        int count = Integer.parseInt(arguments[0]);
        CountDownLatch started = new CountDownLatch(count);
        for (int i = 0; i < count; i++) {
            Thread thread = new Thread(null, () -> {
                started.countDown();
                while (true) {
                    LockSupport.park();
                }
            }, "waits-" + i, 128 << 10);
            thread.setDaemon(true);
            thread.start();
        }
        started.await();
        System.out.println("all wait");
        LockSupport.park();
    }
}

import java.nio.ByteBuffer;

/** Holds what its arguments say, then stands still: Quiet DIRECT_BUFFERS BYTES_EACH THREADS. */
public class Quiet {
    static Object kept;

    public static void main(String[] args) throws Exception {
        ByteBuffer[] buffers = new ByteBuffer[Integer.parseInt(args[0])];
        for (int i = 0; i < buffers.length; i++) buffers[i] = ByteBuffer.allocateDirect(Integer.parseInt(args[1]));
        kept = buffers;
        Thread[] threads = new Thread[Integer.parseInt(args[2])];
        for (int i = 0; i < threads.length; i++) {
            threads[i] = new Thread(Quiet::sleep, "quiet-\"quoted\"-worker-with-a-long-name-" + i);
            threads[i].setDaemon(true);
            threads[i].start();
        }
        // A thread sets its name in the kernel when it first runs, which may be long after its start.
        for (Thread thread : threads) while (thread.getState() != Thread.State.TIMED_WAITING) Thread.sleep(1);
        System.out.println("READY");
        System.out.flush();
        sleep();
    }

    static void sleep() {
        try { Thread.sleep(Long.MAX_VALUE); } catch (InterruptedException e) { throw new AssertionError(e); }
    }
}

import java.util.concurrent.ThreadLocalRandom;
import jdk.jfr.DataAmount;
import jdk.jfr.Event;
import jdk.jfr.Name;

/** Flood EVENTS: fills a recording with EVENTS events of an application, each with a stack, beside those of the JVM. */
public class Flood {
    @Name("bench.Request")
    static class Request extends Event {
        String path;
        int status;
        @DataAmount(DataAmount.BYTES) long bytes;
        Class<?> handler;
    }

    static volatile Object sink;

    static void serve(int depth, int number) {
        if (depth > 0) {
            serve(depth - 1, number);
            return;
        }
        Request request = new Request();
        request.begin();
        sink = new byte[64 + number % 512];
        request.path = "/shop/orders/" + number % 5000 + "/items/" + number % 17 + "?page=" + number % 9;
        request.status = number % 50 == 0 ? 500 : 200;
        request.bytes = ThreadLocalRandom.current().nextLong(1 << 20);
        request.handler = Flood.class;
        request.commit();
    }

    public static void main(String[] arguments) throws Exception {
        int each = Integer.parseInt(arguments[0]) / 2;
        Thread[] threads = new Thread[2];
        for (int t = 0; t < threads.length; t++) {
            threads[t] = new Thread(() -> {
                for (int i = 0; i < each; i++) serve(5 + i % 20, i);
            }, "worker-" + t);
            threads[t].start();
        }
        for (Thread thread : threads) thread.join();
    }
}

/** Allocates as its arguments say, in named methods and threads: small objects on one, large arrays on another. */
public class Allocates {
    /** 64 bytes of fields and a header of 12 (compressed class pointers), rounded to 80. */
    static final class Box {
        long a, b, c, d, e, f, g, h;
    }

    static volatile Object sink;

    static void boxes(int count) {
        for (int i = 0; i < count; i++) sink = new Box();
    }

    static void arrays(int count) {
        for (int i = 0; i < count; i++) sink = new byte[4 << 20];
    }

    static void doStart(int count) {
        arrays(count);
    }

    static void doMore(int count) {
        arrays(count);
    }

    public static void main(String[] arguments) throws Exception {
        int boxes = Integer.parseInt(arguments[0]), start = Integer.parseInt(arguments[1]), more = Integer.parseInt(arguments[2]);
        Thread worker = new Thread(() -> boxes(boxes), "box-maker");
        worker.start();
        worker.join();
        doStart(start);
        doMore(more);
    }
}

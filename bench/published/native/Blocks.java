import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.lang.reflect.Field;
import java.net.InetSocketAddress;
import java.net.URI;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Executors;
import java.util.regex.Pattern;
import sun.misc.Unsafe;

/**
 * The server of published tables 1 and 3 as a native image: PORT ROUTES.
 * A request for /blocks makes and frees 1,000 native blocks of 1 KiB, one after the other, before it answers.
 */
public class Blocks {
    static final Unsafe UNSAFE = unsafe();
    /** Compiled at the start, and kept: the additional work that a newer version of a framework may do. */
    static final List<Pattern> ROUTES = new ArrayList<>();

    public static void main(String[] arguments) throws IOException {
        compileRoutes(Integer.parseInt(arguments[1]));
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[0])), 64);
        server.setExecutor(Executors.newFixedThreadPool(25));
        server.createContext("/blocks", Blocks::answer);
        server.start();
    }

    static void compileRoutes(int count) {
        for (int i = 0; i < count; i++) {
            ROUTES.add(Pattern.compile("/route" + i + "/(?<name>[a-z]+)/(?<number>\\d{1,9})"));
        }
    }

    static void answer(HttpExchange exchange) throws IOException {
        URI uri = exchange.getRequestURI();
        for (Pattern route : ROUTES) {
            if (route.matcher(uri.getPath()).matches()) {
                break;
            }
        }
        byte[] body = ("sum " + blocks(1000, 1024) + "\n").getBytes();
        exchange.sendResponseHeaders(200, body.length);
        try (var out = exchange.getResponseBody()) {
            out.write(body);
        }
    }

    static long blocks(int count, int bytes) {
        long sum = 0;
        for (int i = 0; i < count; i++) {
            long block = UNSAFE.allocateMemory(bytes);
            UNSAFE.putLong(block, i);
            sum += UNSAFE.getLong(block);
            UNSAFE.freeMemory(block);
        }
        return sum;
    }

    private static Unsafe unsafe() {
        try {
            Field field = Unsafe.class.getDeclaredField("theUnsafe");
            field.setAccessible(true);
            return (Unsafe) field.get(null);
        } catch (ReflectiveOperationException e) {
            throw new ExceptionInInitializerError(e);
        }
    }
}

import com.sun.net.httpserver.HttpServer;
import io.lettuce.core.RedisClient;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.resource.ClientResources;
import io.lettuce.core.resource.DefaultClientResources;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * Service PORT REDIS SETS: an HTTP server over Redis. Twelve Lettuce clients share SETS sets of event loops (ClientResources). A
 * request writes and reads a value of 100 KB through the next connection.
 */
public class Service {
    static final int CLIENTS = 12, CONNECTIONS = 8, VALUE = 100_000;

    public static void main(String[] args) throws Exception {
        List<ClientResources> sets = new ArrayList<>();
        for (int i = 0; i < Integer.parseInt(args[2]); i++)
            sets.add(DefaultClientResources.builder().ioThreadPoolSize(8).computationThreadPoolSize(4).build());
        List<StatefulRedisConnection<String, String>> connections = new ArrayList<>();
        for (int i = 0; i < CLIENTS; i++) {
            RedisClient client = RedisClient.create(sets.get(i % sets.size()), "redis://127.0.0.1:" + args[1]);
            for (int j = 0; j < CONNECTIONS; j++) connections.add(client.connect());
        }
        String value = "v".repeat(VALUE);
        AtomicInteger next = new AtomicInteger();
        HttpServer server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), Integer.parseInt(args[0])), 0);
        server.setExecutor(Executors.newFixedThreadPool(16));
        server.createContext("/work", exchange -> {
            int number = Math.floorMod(next.getAndIncrement(), connections.size());
            StatefulRedisConnection<String, String> connection = connections.get(number);
            connection.sync().set("key" + number, value);
            byte[] body = ("read " + connection.sync().get("key" + number).length() + "\n").getBytes(StandardCharsets.UTF_8);
            exchange.sendResponseHeaders(200, body.length);
            try (var out = exchange.getResponseBody()) {
                out.write(body);
            }
        });
        server.start();
    }
}

import com.sun.net.httpserver.HttpServer;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.URL;
import java.net.URLClassLoader;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Executors;
import java.util.concurrent.ForkJoinPool;
import java.util.stream.IntStream;
import javax.net.ssl.SSLContext;

/** Another load: HTTP server and client, TLS, mapped files, class loaders that die, stack traces, monitors, Flight Recorder. */
public class Server {
    static final List<Object> kept = new ArrayList<>();

    public static void main(String[] args) throws Exception {
        HttpServer server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
        server.createContext("/", exchange -> {
            byte[] body = ("hello " + exchange.getRequestURI()).repeat(100).getBytes();
            exchange.sendResponseHeaders(200, body.length);
            exchange.getResponseBody().write(body);
            exchange.close();
        });
        server.setExecutor(Executors.newFixedThreadPool(8));
        server.start();
        HttpClient client = HttpClient.newHttpClient();
        URI uri = URI.create("http://127.0.0.1:" + server.getAddress().getPort() + "/x");
        for (int i = 0; i < 300; i++) {
            client.send(HttpRequest.newBuilder(uri).build(), HttpResponse.BodyHandlers.ofString());
        }
        kept.add(SSLContext.getDefault().createSSLEngine());
        try (FileChannel file = FileChannel.open(Path.of(System.getProperty("java.home"), "lib", "modules"), StandardOpenOption.READ)) {
            kept.add(file.map(FileChannel.MapMode.READ_ONLY, 0, 1 << 20));
        }
        URL[] here = {Server.class.getProtectionDomain().getCodeSource().getLocation()};
        for (int i = 0; i < 20; i++) {
            try (URLClassLoader loader = new URLClassLoader(here, null)) {
                Object own = loader.loadClass("Server$Own").getDeclaredConstructor().newInstance();
                if (i % 2 == 0) kept.add(own);
            }
        }
        Object lock = new Object();
        IntStream.range(0, 2000).parallel().forEach(i -> {
            synchronized (lock) {
                kept.add(new Exception("e" + i).getStackTrace());
            }
        });
        ForkJoinPool.commonPool().submit(() -> Thread.getAllStackTraces().size()).get();
        java.lang.management.ManagementFactory.getThreadMXBean().dumpAllThreads(true, true);
        for (int i = 0; i < 3; i++) System.gc();
        System.out.println("READY");
        System.in.read();
        System.exit(0);
    }

    public static class Own {
        public Runnable task = () -> System.out.println(this);
    }
}

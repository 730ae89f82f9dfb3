import java.io.File;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.zip.Deflater;
import javax.tools.ToolProvider;

/** Makes a VM busy in many of its parts: compilers, class loading, threads, direct memory, collections, strings. */
public class Load {
    static final List<Object> kept = new ArrayList<>();

    public static void main(String[] args) throws Exception {
        for (int i = 0; i < 32; i++) kept.add(ByteBuffer.allocateDirect(256 << 10));
        for (int i = 0; i < 20; i++) kept.add(new Deflater());
        for (int i = 0; i < 30; i++) {
            Thread thread = new Thread(() -> {
                try {
                    Thread.sleep(Long.MAX_VALUE);
                } catch (InterruptedException e) {
                    return;
                }
            });
            thread.setDaemon(true);
            thread.start();
        }
        compile();
        for (Object bean : ManagementFactory.getGarbageCollectorMXBeans()) kept.add(bean.toString());
        for (int i = 0; i < 100_000; i++) kept.add(new byte[100]);
        for (int i = 0; i < 3; i++) System.gc();
        for (int i = 0; i < 5000; i++) kept.add(("s" + i).intern());
        System.out.println("READY");
        System.in.read();
        System.exit(0);
    }

    static void compile() throws Exception {
        Path directory = Files.createTempDirectory("load");
        Path file = directory.resolve("A.java");
        StringBuilder source = new StringBuilder("class A {\n");
        for (int i = 0; i < 200; i++) {
            source.append("int m" + i + "(int x) { java.util.List<Integer> l = new java.util.ArrayList<>(); l.add(x);"
                + " l.forEach(y -> System.out.println(y + " + i + ")); return x * " + i + "; }\n");
        }
        Files.writeString(file, source + "}");
        for (int i = 0; i < 2; i++) {
            ToolProvider.getSystemJavaCompiler().run(null, null, null, "-d", directory.toString(), file.toString());
        }
        for (File each : directory.toFile().listFiles()) each.delete();
        Files.delete(directory);
    }
}

package bench;

import jakarta.ws.rs.GET;
import jakarta.ws.rs.Path;
import jakarta.ws.rs.QueryParam;
import jakarta.ws.rs.DefaultValue;
import java.lang.reflect.Field;
import sun.misc.Unsafe;

/** The request of published table 1: makes and frees native blocks, one after the other, before it answers. */
@Path("/blocks")
public class Blocks {
    static final Unsafe UNSAFE = unsafe();

    @GET
    public String blocks(@QueryParam("count") @DefaultValue("1000") int count, @QueryParam("bytes") @DefaultValue("1024") int bytes) {
        long sum = 0;
        for (int i = 0; i < count; i++) {
            long block = UNSAFE.allocateMemory(bytes);
            UNSAFE.putLong(block, i);
            sum += UNSAFE.getLong(block);
            UNSAFE.freeMemory(block);
        }
        return "sum " + sum + "\n";
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

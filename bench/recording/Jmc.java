import java.io.File;
import org.openjdk.jmc.common.item.IItemIterable;
import org.openjdk.jmc.flightrecorder.JfrLoaderToolkit;

/** JDK Mission Control's parser, as JMC itself calls it: every event of the file. */
public class Jmc {
    public static void main(String[] arguments) throws Exception {
        long events = 0;
        for (IItemIterable items : JfrLoaderToolkit.loadEvents(new File(arguments[0]))) events += items.getItemCount();
        System.out.println(events);
    }
}

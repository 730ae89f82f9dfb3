/** The smallest JVM: for the cost of a start. With an argument it waits: Hello MILLISECONDS. */
public class Hello {
    public static void main(String[] arguments) throws InterruptedException {
        System.out.println("hello");
        if (arguments.length > 0) Thread.sleep(Long.parseLong(arguments[0]));
    }
}

//! The OpenTelemetry agent in a program whose workers had a burst.

use crate::fixture::Fixture;
use crate::kit::{has, how, jars, on, promised, remedy, start, typed};
use crate::stage::Jdk;

fn with_agent(jdk: &Jdk, options: &[&str]) -> Fixture {
    let agent = format!("-javaagent:{}", jars(&["opentelemetry-javaagent"])[0].display());
    let exporters = ["-Dotel.traces.exporter=none", "-Dotel.metrics.exporter=none", "-Dotel.logs.exporter=none"];
    let options = [&[agent.as_str(), "-Xms64m", "-Xmx64m", "-XX:+AlwaysPreTouch"], &exporters[..], options].concat();
    start(jdk, &options, "Burst", &["40", "12"], &[])
}

fn burst_beside_the_agent(jdk: &Jdk) {
    let case = format!("40 workers' burst beside the OpenTelemetry agent, JDK {}", jdk.major);
    let mut workers = with_agent(jdk, &[]);
    let explained = workers.explained();
    has(&case, &explained, &["arena-retention"]);
    let trim = remedy(&explained, "arena-retention", 0);
    // Compares the line and not RSS: the compilers, busy with the agent, give back memory of their own meanwhile.
    let before = explained.line("glibc-retained");
    typed(&mut workers, &trim);
    let after = workers.explained().line("glibc-retained");
    let (least, most) = promised(&trim).expect("a figure");
    assert!(before - after <= most && (before - after) * 10 >= least * 9, "{case}: {before} to {after}: {trim:#}");
    workers.serves();
    // Plimsoll can't know which instrumentations a program needs: it names none, and promises no figure.
    let remedies = explained.verdict("arena-retention")["remedies"].as_array().unwrap().clone();
    let switch = remedies.iter().find(|remedy| how(remedy).contains("opentelemetry")).expect("the agent's remedy");
    assert_eq!(promised(switch), None, "{case}");
    let listed = typed(&mut workers, switch);
    assert!(listed.lines().all(|class| class.ends_with("Singletons")), "{case}: {listed}");
    let mut fewer = with_agent(jdk, &["-Dotel.instrumentation.executors.enabled=false"]);
    fewer.serves();
}

#[test]
#[ignore = "full: the agent takes seconds to start"]
fn a_burst_beside_the_opentelemetry_agent() {
    on(17).iter().for_each(burst_beside_the_agent);
}

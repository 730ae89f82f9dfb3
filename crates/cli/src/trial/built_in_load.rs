//! The built-in load: GET requests at a constant rate over several connections (`plimsoll_trial::rate`).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use plimsoll_trial::rate::{Answers, Latencies, Reply, Schedule, Url};

use super::http::{Client, is_late};

/// Time limit for one request.
const PATIENCE: Duration = Duration::from_secs(10);
/// A stop is noticed within this time.
const SLICE: Duration = Duration::from_millis(50);
/// After the last request was due, the connections go on sending late requests for the whole time / `OVERTIME`.
const OVERTIME: u32 = 4;
/// Limit of times for which requests count that were never sent; each stands for those that were due right after it.
const MOST_UNSENT: u64 = 1 << 20;

/// What to request, and how often.
#[derive(Clone, Debug)]
pub struct Drive {
    pub url: Url,
    pub rate: u32,
    pub connections: u16,
}

impl std::fmt::Display for Drive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GET {}, {}/s over {} connections", self.url, self.rate, self.connections)
    }
}

/// A load that runs. Dropping it stops its threads.
pub(super) struct Driving {
    shared: Arc<Shared>,
    connections: Vec<JoinHandle<()>>,
}

struct Shared {
    drive: Drive,
    schedule: Schedule,
    began: Instant,
    /// The next request that no connection has taken.
    next: AtomicU64,
    stop: AtomicBool,
    /// The answers of all connections, and the time from the start to the last good one.
    answers: Mutex<(Answers, Duration)>,
}

impl Driving {
    pub(super) fn start(drive: &Drive, lasts: Duration) -> Driving {
        let shared = Arc::new(Shared {
            drive: drive.clone(),
            schedule: Schedule { rate: drive.rate, lasts },
            began: Instant::now(),
            next: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            answers: Mutex::default(),
        });
        let one = || {
            let shared = shared.clone();
            thread::Builder::new().name("load".into()).spawn(move || shared.connection()).ok()
        };
        let connections = (0..drive.connections).filter_map(|_| one()).collect();
        Driving { shared, connections }
    }

    pub(super) fn is_done(&self) -> bool {
        self.connections.iter().all(JoinHandle::is_finished)
    }

    /// The answers of all connections, and the time of the load: to the last good answer, and no less than it was to
    /// last. Otherwise a server that fails half of the time would seem to answer all requests in the other half.
    pub(super) fn answers(mut self) -> (Answers, Duration) {
        for connection in self.connections.drain(..) {
            let _ = connection.join();
        }
        let mut answers = self.shared.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut all, took) = std::mem::take(&mut *answers);
        // Requests that are left when time is up were due, but never sent.
        let (schedule, end) = (&self.shared.schedule, self.shared.began.elapsed());
        add_unsent(&mut all.unanswered, schedule, self.shared.next.load(Ordering::Relaxed), end);
        (all, took.max(schedule.lasts))
    }
}

/// Adds how long the requests from `first` on have waited.
fn add_unsent(unsent: &mut Latencies, schedule: &Schedule, first: u64, end: Duration) {
    let all = schedule.requests();
    let step = all.saturating_sub(first).div_ceil(MOST_UNSENT).max(1);
    let mut request = first;
    while request < all {
        let number = step.min(all - request);
        unsent.add(end.saturating_sub(schedule.due(request)), number);
        request += number;
    }
}

impl Drop for Driving {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }
}

impl Shared {
    /// Takes the next request, waits until it is due, and sends it; a late request is sent at once.
    fn connection(&self) {
        let mut client = Client::new(&self.drive.url, PATIENCE);
        let end = self.schedule.lasts + self.schedule.lasts / OVERTIME;
        while self.began.elapsed() < end && !self.stop.load(Ordering::Relaxed) {
            let request = self.next.fetch_add(1, Ordering::Relaxed);
            if request >= self.schedule.requests() {
                // So that `next` remains the number of requests that were taken.
                self.next.fetch_sub(1, Ordering::Relaxed);
                break;
            }
            let due = self.schedule.due(request);
            while let Some(left) = due.checked_sub(self.began.elapsed()).filter(|left| !left.is_zero()) {
                if self.stop.load(Ordering::Relaxed) {
                    return;
                }
                thread::sleep(left.min(SLICE));
            }
            let reply = match client.get() {
                Ok(status) => Reply::Status(status),
                Err(error) if is_late(&error) => Reply::Late,
                Err(_) => Reply::Broken,
            };
            let now = self.began.elapsed();
            let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
            if answers.0.count(reply, now.saturating_sub(due)) {
                answers.1 = answers.1.max(now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// Answers each request on each connection with the status that `status` returns for its number.
    fn server(status: impl Fn(u64) -> &'static str + Send + Sync + 'static) -> Url {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = Url::parse(&format!("http://{}/", listener.local_addr().expect("an address"))).expect("an address");
        let number = AtomicU64::new(0);
        let next = Arc::new(move || status(number.fetch_add(1, Ordering::Relaxed)));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let next = next.clone();
                thread::spawn(move || answer(stream, &*next));
            }
        });
        url
    }

    fn answer(stream: TcpStream, status: &dyn Fn() -> &'static str) {
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        while reader.read_line(&mut line).is_ok_and(|read| read > 0) {
            if line == "\r\n" {
                let text = format!("HTTP/1.1 {}\r\nContent-Length: 2\r\n\r\nok", status());
                if reader.get_mut().write_all(text.as_bytes()).is_err() {
                    return;
                }
            }
            line.clear();
        }
    }

    fn driven(url: Url, rate: u32, connections: u16, lasts: Duration) -> (Answers, Duration) {
        Driving::start(&Drive { url, rate, connections }, lasts).answers()
    }

    /// One connection, 100 requests/s. 30 of them are due during the stall of 300 ms. Those of its first 200 ms wait
    /// 100 ms at least, however slow the machine is.
    #[test]
    fn requests_that_were_due_during_a_stall_count_from_then_on() {
        let stalls = |number: u64| {
            thread::sleep(Duration::from_millis(if number == 0 { 300 } else { 0 }));
            "200 OK"
        };
        let (answers, _) = driven(server(stalls), 100, 1, Duration::from_millis(500));
        let sum = |of: &dyn Fn(&Latencies) -> u64| of(&answers.latencies) + of(&answers.unanswered);
        assert_eq!((sum(&Latencies::len), answers.failed), (50, 0));
        let late = sum(&|latencies| latencies.at_least(Duration::from_millis(100)));
        assert!(late >= 20, "{late}");
    }

    /// A day's load of which nothing was sent: 8,640,000,000 requests.
    #[test]
    fn unsent_requests_are_all_counted_in_a_bounded_number_of_steps() {
        let schedule = Schedule { rate: 100_000, lasts: Duration::from_secs(86_400) };
        let mut unsent = Latencies::default();
        add_unsent(&mut unsent, &schedule, 0, Duration::from_secs(90_000));
        assert_eq!(unsent.len(), 8_640_000_000);
        assert_eq!(unsent.at_least(Duration::from_secs(90_001)), 0);
        // Exact, if they are few: due after 0, 10, 20 … 90 ms.
        let schedule = Schedule { rate: 100, lasts: Duration::from_millis(100) };
        let mut unsent = Latencies::default();
        add_unsent(&mut unsent, &schedule, 3, Duration::from_millis(100));
        let at_least = |time: u64| unsent.at_least(Duration::from_millis(time));
        assert_eq!([unsent.len(), at_least(10), at_least(11), at_least(70), at_least(71)], [7, 7, 6, 1, 0]);
    }

    #[test]
    fn a_request_is_sent_once_whatever_the_connections() {
        let (answers, _) = driven(server(|_| "200 OK"), 500, 7, Duration::from_millis(200));
        assert_eq!(answers.latencies.len() + answers.unanswered.len(), 100);
        let (answers, _) = driven(server(|_| "503 Busy"), 100, 2, Duration::from_millis(100));
        assert_eq!((answers.latencies.len(), answers.failed + answers.unanswered.len()), (0, 10));
        assert_eq!(answers.figures(Duration::from_secs(1)), None);
    }

    /// Five good answers in three seconds are 1.7 a second at most, however early they came. A busy machine may send
    /// fewer than five requests in that time.
    #[test]
    fn the_time_in_which_all_requests_fail_counts() {
        let breaks = |number: u64| if number < 5 { "200 OK" } else { "503 Busy" };
        let (answers, took) = driven(server(breaks), 100, 1, Duration::from_secs(3));
        assert!((1..=5).contains(&answers.latencies.len()), "{}", answers.latencies.len());
        let figures = answers.figures(took).expect("figures");
        assert!(figures.throughput <= 5.0 / 3.0, "{figures:?}");
    }
}

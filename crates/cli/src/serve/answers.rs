//! Answers the listener's questions. Three threads, so that a slow answer holds up no other kind:
//!
//! ```text
//! requests   reads the pipe, checks every bit, answers health at once
//! figures    metrics and lists, from the board; waits for a round if the last is too old
//! pages      one target at a time, read for the answer as `explain` and `report` read it; kept for some seconds
//! ```
//! The reader finds a target by its name on the board, so a request can reach no process that isn't on it.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_facts::gap::{Gap, Source};
use plimsoll_observer::collect::{Regions, take_snapshot};
use plimsoll_observer::ledger::Ledger;
use plimsoll_observer::recording::MIXED;
use plimsoll_observer::verdict::judge;
use plimsoll_process::foreign::{Deadline, LOOK};
use plimsoll_report::ledger_text::Explanation;
use plimsoll_report::metrics::{Own, Samples};
use plimsoll_report::prometheus::{self, Style};
use plimsoll_report::serve_list::{self, Row};
use plimsoll_report::{json, ledger_json, page as pages, recording_json};
use plimsoll_tracked::symbols;

use super::board::{Board, Posted, Published};
use super::history::Store;
use super::rounds;
use super::wire::{self, Content, Head, Question, QuestionKind, Status};
use crate::stack_options::Stacks;
use crate::{Failure, page, target};

/// An answer about one target is kept for this time.
const KEPT: Duration = Duration::from_secs(5);
const MOST_KEPT: usize = 8;
/// The server is unhealthy if no round has ended for the interval and this time.
const SILENT: Duration = Duration::from_secs(60);

pub struct Answers {
    pub board: Arc<Board>,
    pub writer: Mutex<UnixStream>,
    /// Our processes.
    pub own: Vec<u32>,
    pub history: Option<Arc<Store>>,
    /// How many exports have failed; None: there are no exports.
    pub failed_exports: Option<Arc<AtomicU64>>,
    /// Start of the server, ns since 1970.
    pub since_ns: u64,
}

/// An answer without its number.
#[derive(Clone)]
struct Answer {
    status: Status,
    content: Content,
    body: Arc<Vec<u8>>,
}

impl Answer {
    fn fine(content: Content, body: Vec<u8>) -> Answer {
        Answer { status: Status::Fine, content, body: Arc::new(body) }
    }

    fn sentence(status: Status, sentence: &str) -> Answer {
        Answer { status, content: Content::Plain, body: Arc::new(format!("{sentence}\n").into_bytes()) }
    }
}

/// What ends the requests.
pub enum RequestsEnd {
    /// The listener has ended.
    Closed,
    /// The listener sent an invalid request.
    Broken,
}

/// Reads requests until there are no more.
pub fn serve(answers: &Arc<Answers>, mut reader: UnixStream) -> io::Result<RequestsEnd> {
    let (figures, figure_questions) = sync_channel(wire::MOST_REQUESTS);
    let (pages, page_questions) = sync_channel(wire::MOST_REQUESTS);
    let theirs = answers.clone();
    thread::Builder::new().name("figures".into()).spawn(move || theirs.figures(&figure_questions))?;
    let theirs = answers.clone();
    thread::Builder::new().name("pages".into()).spawn(move || theirs.pages(&page_questions))?;
    let mut bytes = [0; wire::REQUEST];
    loop {
        if reader.read_exact(&mut bytes).is_err() {
            return Ok(RequestsEnd::Closed);
        }
        let Some((number, question)) = Question::decode(&bytes) else { return Ok(RequestsEnd::Broken) };
        let to: &SyncSender<_> = match question.kind {
            // The listener sends it once, before the first request.
            QuestionKind::Ready => return Ok(RequestsEnd::Broken),
            QuestionKind::Health => {
                answers.write(number, &answers.health());
                continue;
            }
            QuestionKind::Metrics | QuestionKind::List | QuestionKind::Targets => &figures,
            QuestionKind::Page | QuestionKind::Explain | QuestionKind::Report | QuestionKind::Recording => &pages,
        };
        match to.try_send((number, question)) {
            Ok(()) => {}
            // The listener has sent more requests than it may.
            Err(TrySendError::Full(_)) => return Ok(RequestsEnd::Broken),
            Err(TrySendError::Disconnected(_)) => return Ok(RequestsEnd::Closed),
        }
    }
}

type NumberedQuestion = (u32, Question);
/// When the answer was made, to what question, and the answer.
type KeptAnswer = (Instant, Question, Answer);

/// Waits for the next question. Meanwhile, answers older than `limit` are dropped, because a page may have megabytes.
fn next(
    questions: &Receiver<NumberedQuestion>,
    kept: &mut Vec<KeptAnswer>,
    limit: Duration,
) -> Option<NumberedQuestion> {
    loop {
        kept.retain(|(at, ..)| at.elapsed() < limit);
        let Some(oldest) = kept.iter().map(|(at, ..)| *at).min() else { return questions.recv().ok() };
        match questions.recv_timeout(limit.saturating_sub(oldest.elapsed())) {
            Ok(question) => return Some(question),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return None,
        }
    }
}

impl Answers {
    /// An answer that can't be written is lost with the listener, whose end ends the program.
    fn write(&self, number: u32, answer: &Answer) {
        let too_long = Answer::sentence(Status::Failed, "the answer is longer than 32 MiB");
        let answer = if answer.body.len() > wire::MOST_BODY { &too_long } else { answer };
        let head = Head { number, status: answer.status, content: answer.content, length: answer.body.len() };
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = writer.write_all(&head.encode()).and_then(|()| writer.write_all(&answer.body));
    }

    fn health(&self) -> Answer {
        let silence = self.board.silence();
        match silence > self.board.interval + SILENT {
            true => Answer::sentence(Status::Failed, &format!("no reading for {} s", silence.as_secs())),
            false => Answer::sentence(Status::Fine, "ok"),
        }
    }

    fn figures(&self, questions: &Receiver<NumberedQuestion>) {
        while let Ok((number, question)) = questions.recv() {
            let posted = self.board.fresh();
            let body = match question.kind {
                QuestionKind::Metrics => {
                    let style = if question.style == 1 { Style::OpenMetrics } else { Style::Prometheus };
                    let content = if question.style == 1 { Content::OpenMetrics } else { Content::Prometheus };
                    made(content, |out| self.metrics(out, &posted, style))
                }
                QuestionKind::List => {
                    made(Content::Html, |out| pages::write_list(out, &rows(&posted), posted.left_out))
                }
                _ => made(Content::Json, |out| serve_list::json(out, &rows(&posted), posted.left_out)),
            };
            self.write(number, &body);
        }
    }

    /// What the server reports about itself.
    pub fn own(&self, posted: &Posted) -> Samples {
        Own {
            targets: posted.targets.len(),
            left_out: posted.left_out,
            cpu: self.own.iter().map(|pid| rounds::processor_time(*pid)).sum(),
            resident: self.own.iter().map(|pid| rounds::resident(*pid)).sum(),
            round: posted.took,
            failed_exports: self.failed_exports.as_ref().map(|failed| failed.load(Ordering::Relaxed)),
            since_ns: self.since_ns,
        }
        .samples()
    }

    fn metrics(&self, out: &mut Vec<u8>, posted: &Posted, style: Style) -> io::Result<()> {
        let own = self.own(posted);
        let ages: Vec<Samples> =
            posted.targets.iter().map(|of| Samples::age(&of.row.name, of.read_at.elapsed())).collect();
        let all: Vec<&Samples> =
            posted.targets.iter().map(|of| of.samples.as_ref()).chain(&ages).chain([&own]).collect();
        prometheus::write(out, &all, style)
    }

    fn pages(&self, questions: &Receiver<NumberedQuestion>) {
        let mut kept: Vec<KeptAnswer> = Vec::new();
        while let Some((number, question)) = next(questions, &mut kept, KEPT) {
            let answer = match kept.iter().find(|(_, of, _)| *of == question) {
                Some((.., answer)) => answer.clone(),
                None => {
                    let answer = self.of_target(&question);
                    kept.truncate(MOST_KEPT - 1);
                    kept.insert(0, (Instant::now(), question, answer.clone()));
                    answer
                }
            };
            self.write(number, &answer);
        }
    }

    fn of_target(&self, question: &Question) -> Answer {
        let found = self.board.look().targets.iter().find(|of| of.row.name == question.target).cloned();
        let Some(of) = found else {
            return Answer::sentence(Status::Absent, "there is no such target. The list: /");
        };
        let deadline = Deadline::after(LOOK);
        let answer = match question.kind {
            QuestionKind::Page => self.page_of(&of, deadline),
            QuestionKind::Explain => document_of(&of, deadline),
            QuestionKind::Report => report_of(&of, deadline),
            _ => self.recording_of(&of),
        };
        // Another process may have the PID by now.
        if rounds::start_of(of.identity.pid) != Some(of.identity.start) {
            return Answer::sentence(Status::Absent, "the process has ended. The list: /");
        }
        answer.unwrap_or_else(|Failure(sentence)| Answer::sentence(Status::Absent, &sentence))
    }

    fn page_of(&self, of: &Published, deadline: Deadline) -> Result<Answer, Failure> {
        let explanation = explanation(of, deadline)?;
        let mut page = page::explained(&explanation, deadline)?;
        let recent = || of.recent.lock().unwrap_or_else(PoisonError::into_inner).history();
        let history = match self.history.as_ref().map(|store| store.of(&of.row.name)) {
            Some(Ok(history)) => Some(history),
            None => recent(),
            Some(Err(Failure(reason))) => recent().map(|mut history| {
                let effect = "the curves are those that the server has in memory";
                history.gaps.push(Gap::new(Source::Jfr, reason, effect));
                history
            }),
        };
        if let Some(mut history) = history {
            // A restarted program keeps its name, so its directory has several processes, one after the other.
            history.gaps.retain(|gap| gap.effect != MIXED);
            pages::add_curves(&mut page, &history, &ledger_json::document(&explanation));
        }
        Ok(made(Content::Html, |out| pages::write_live(out, &page, &of.row.name)))
    }

    fn recording_of(&self, of: &Published) -> Result<Answer, Failure> {
        let store =
            self.history.as_ref().ok_or("plimsoll serve keeps recordings only with --history DIR, --keep or --size")?;
        let history = store.of(&of.row.name)?;
        Ok(made(Content::Json, |out| recording_json::write(out, &history)))
    }
}

fn rows(posted: &Posted) -> Vec<(&Row, f64)> {
    posted.targets.iter().map(|of| (&of.row, of.read_at.elapsed().as_secs_f64())).collect()
}

fn made(content: Content, write: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> Answer {
    let mut body = Vec::new();
    match write(&mut body) {
        Ok(()) => Answer::fine(content, body),
        Err(error) => Answer::sentence(Status::Failed, &format!("cannot write the answer: {error}")),
    }
}

/// The process as it is now, compared with the baseline of the rounds.
fn explanation(of: &Published, deadline: Deadline) -> Result<Explanation, Failure> {
    let mut snapshot =
        take_snapshot(of.identity.pid, Regions::AsNeeded, deadline).map_err(|refusal| Failure(refusal.0))?;
    snapshot.baseline.clone_from(&of.baseline);
    let ledger = Ledger::of(&snapshot);
    ledger.take_incomparable(&mut snapshot);
    let verdicts = judge(&snapshot, &ledger);
    Ok(Explanation { snapshot, ledger, verdicts })
}

fn document_of(of: &Published, deadline: Deadline) -> Result<Answer, Failure> {
    let explanation = explanation(of, deadline)?;
    Ok(made(Content::Json, |mut out| ledger_json::write(&mut out, &explanation)))
}

fn report_of(of: &Published, deadline: Deadline) -> Result<Answer, Failure> {
    let pid = of.identity.pid.to_string();
    let mut target = target::open(Path::new(&pid), deadline)?;
    let names = target.symbols(&[]);
    symbols::resolve(&mut target.books, &names, target.deadline);
    let sites = Stacks::default().sites(&mut target, false)?;
    Ok(made(Content::Json, |out| json::write(out, &target.books, Some(&sites), json::Frames::InSites)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_answer_goes_while_nobody_asks() {
        let answer = Answer::sentence(Status::Fine, "a page");
        let body = Arc::downgrade(&answer.body);
        let mut kept = vec![(Instant::now(), Question::of(QuestionKind::Page), answer)];
        let (ask, questions) = sync_channel(1);
        let limit = Duration::from_millis(50);
        let waiting = thread::spawn(move || next(&questions, &mut kept, limit));
        let began = Instant::now();
        while body.upgrade().is_some() {
            assert!(began.elapsed() < Duration::from_secs(120), "it is kept");
            thread::sleep(Duration::from_millis(5));
        }
        ask.send((7, Question::of(QuestionKind::List))).expect("it waits");
        assert_eq!(waiting.join().expect("a question"), Some((7, Question::of(QuestionKind::List))));
    }
}

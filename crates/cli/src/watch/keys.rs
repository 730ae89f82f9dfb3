//! Keys: what each one changes in the state, and its effect beyond the state. The foot of the screen shows `help`.

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use plimsoll_observer::ledger::Baseline;

use super::state::{Page, Panel, State};

/// What a key makes happen beyond the state.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    Quit,
    /// Stops this program until the shell continues it.
    Suspend,
    Open(u32),
    /// Back to the list.
    Close,
    Baseline(Option<Baseline>),
    Record,
    StopRecording,
}

/// Key and meaning, in the order of their importance.
pub fn help(state: &State) -> Vec<(&'static str, &'static str)> {
    let is_list = state.shown.one.is_none();
    let back = if state.has_list { "list" } else { "" };
    match (is_list, state.page) {
        (true, _) => vec![
            ("q", "quit"),
            ("Enter", "look into"),
            ("↑↓", "choose"),
            ("s", "sort"),
            ("b", "baseline now"),
            ("p", pause(state)),
        ],
        (_, Page::Verdicts) => vec![("q", "quit"), ("Esc", "back"), ("↑↓", "scroll")],
        _ => {
            let record = if state.is_recording { "stop recording" } else { "record" };
            let mut keys = vec![
                ("q", "quit"),
                ("v", "verdict"),
                ("b", "baseline now"),
                ("s", "sort"),
                ("p", pause(state)),
                ("r", record),
                ("Tab", "table"),
            ];
            keys.extend((!back.is_empty()).then_some(("Esc", back)));
            keys
        }
    }
}

fn pause(state: &State) -> &'static str {
    if state.paused.is_some() { "go on" } else { "pause" }
}

pub fn press(state: &mut State, key: KeyEvent) -> Option<Effect> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    state.note = None;
    let is_list = state.shown.one.is_none();
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return match key.code {
            KeyCode::Char('c' | 'd') => Some(Effect::Quit),
            KeyCode::Char('z') => Some(Effect::Suspend),
            _ => None,
        };
    }
    match key.code {
        KeyCode::Char('q') => return Some(Effect::Quit),
        KeyCode::Char('s') => state.sort = state.sort.next(),
        KeyCode::Char('p' | ' ') => {
            state.paused = match state.paused.take() {
                Some(_) => None,
                None => Some(Box::new(state.shown.clone())),
            };
        }
        KeyCode::Char('b') if is_list => state.shown.list.set_baseline(),
        KeyCode::Char('b') => {
            let one = state.shown.one.as_mut()?;
            if one.end.is_none() {
                state.note = Some("baseline: everything is compared with this moment from now on".to_owned());
                return Some(Effect::Baseline(one.set_baseline()));
            }
        }
        KeyCode::Up | KeyCode::Char('k') => move_by(state, -1),
        KeyCode::Down | KeyCode::Char('j') => move_by(state, 1),
        KeyCode::PageUp => move_by(state, -10),
        KeyCode::PageDown => move_by(state, 10),
        KeyCode::Enter if is_list => {
            let pid = state.view().list.selected_pid(state.sort);
            (state.left, state.paused) = (None, None);
            return pid.map(Effect::Open);
        }
        KeyCode::Enter | KeyCode::Char('v') if !is_list => {
            state.scroll.set(0);
            state.page = if state.page == Page::Overview { Page::Verdicts } else { Page::Overview };
        }
        KeyCode::Tab if !is_list => {
            let at = Panel::ALL.iter().position(|panel| Some(*panel) == state.panel).map_or(0, |at| at + 1);
            state.panel = Some(Panel::ALL[at % Panel::ALL.len()]);
        }
        KeyCode::Char('r') if !is_list => {
            let has_ended = state.shown.one.as_ref().is_some_and(|one| one.end.is_some());
            return match (state.is_recording, has_ended) {
                (true, _) => Some(Effect::StopRecording),
                (false, true) => None,
                (false, false) => Some(Effect::Record),
            };
        }
        KeyCode::Esc if !is_list && state.page == Page::Verdicts => state.page = Page::Overview,
        KeyCode::Esc if !is_list && state.has_list => {
            state.left = state.shown.one.take().map(|one| one.facts.pid);
            state.paused = None;
            return Some(Effect::Close);
        }
        _ => {}
    }
    None
}

fn move_by(state: &mut State, rows: isize) {
    match (&state.shown.one, state.page) {
        (None, _) => state.choose(rows),
        (Some(_), Page::Verdicts) => state.scroll.set(state.scroll.get().saturating_add_signed(rows)),
        (Some(_), Page::Overview) => {}
    }
}

//! The terminal while `watch` draws on it: raw mode, its own screen, no cursor. `Screen::leave` undoes all of it, and
//! runs at every exit: the end of `watch`, a signal, and a panic.

use std::io::{self, Stdout, Write};
use std::panic;
use std::sync::atomic::{AtomicBool, Ordering};

use crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use crossterm::{cursor, execute};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;

/// Whether the terminal is ours. The panic hook reads it.
static ENTERED: AtomicBool = AtomicBool::new(false);

pub struct Screen {
    pub terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Screen {
    pub fn enter() -> io::Result<Screen> {
        let before = panic::take_hook();
        // This program aborts on a panic, so no destructor would run.
        panic::set_hook(Box::new(move |info| {
            leave();
            before(info);
        }));
        let terminal = Terminal::new(CrosstermBackend::new(io::stdout()))?;
        let mut screen = Screen { terminal };
        screen.enter_screen()?;
        Ok(screen)
    }

    /// Takes the terminal, at the start and after a stop.
    pub fn enter_screen(&mut self) -> io::Result<()> {
        ENTERED.store(true, Ordering::SeqCst);
        enable_raw_mode()?;
        execute!(io::stdout(), EnterAlternateScreen, cursor::Hide)?;
        self.terminal.clear()
    }

    pub fn leave(&mut self) {
        leave();
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        leave();
    }
}

/// Restores the terminal's modes without a write, because a terminal that takes no more output would block it.
pub fn restore_modes() {
    if ENTERED.swap(false, Ordering::SeqCst) {
        let _ = disable_raw_mode();
    }
}

/// Nothing can be done about an error here: the terminal may be gone.
fn leave() {
    if ENTERED.swap(false, Ordering::SeqCst) {
        let _ = execute!(io::stdout(), cursor::Show, LeaveAlternateScreen);
        let _ = disable_raw_mode();
        let _ = io::stdout().flush();
    }
}

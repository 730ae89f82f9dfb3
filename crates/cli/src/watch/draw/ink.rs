//! Colours. Each has a contrast of at least 3 against black and against white (WCAG 2.1, 1.4.11), so a bar and a mark
//! read on dark and on light backgrounds. Text keeps the terminal's own colour; only its weight changes.

use plimsoll_observer::ledger::Group;
use plimsoll_observer::verdict::Severity;
use ratatui::style::{Color, Modifier, Style};

#[derive(Clone, Copy, Debug)]
pub struct Ink {
    has_colours: bool,
}

/// Numbers of the 256-colour palette, whose upper 240 entries are the same everywhere.
const VM: u8 = 32;
const ALLOCATOR: u8 = 130;
const STACKS: u8 = 133;
const FILES: u8 = 30;
const OTHER: u8 = 244;
const BAD: u8 = 160;
const DOUBTFUL: u8 = 136;
const GOOD: u8 = 28;

impl Ink {
    pub fn new(has_colours: bool) -> Ink {
        Ink { has_colours }
    }

    fn colour(self, number: u8) -> Style {
        if self.has_colours { Style::new().fg(Color::Indexed(number)) } else { Style::new() }
    }

    pub fn group(self, group: Group) -> Style {
        self.colour(match group {
            Group::Vm => VM,
            Group::Allocator => ALLOCATOR,
            Group::Stacks => STACKS,
            Group::Files => FILES,
            Group::Other => OTHER,
        })
    }

    pub fn severity(self, severity: Severity, is_unclear: bool) -> Style {
        let number = match severity {
            Severity::Critical => BAD,
            Severity::Warning => DOUBTFUL,
            Severity::Note if is_unclear => DOUBTFUL,
            Severity::Note => GOOD,
        };
        self.colour(number).add_modifier(Modifier::BOLD)
    }

    /// How full a limit is, in percent.
    pub fn fill(self, percent: f64) -> Style {
        self.colour(if percent >= 90.0 {
            BAD
        } else if percent >= 75.0 {
            DOUBTFUL
        } else {
            GOOD
        })
    }

    pub fn up(self) -> Style {
        self.colour(BAD)
    }

    pub fn command(self) -> Style {
        self.colour(GOOD)
    }

    pub fn bold(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub fn title(self) -> Style {
        Style::new().add_modifier(Modifier::UNDERLINED)
    }

    pub fn chosen(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Entries 16 to 231 are a cube of six levels, 232 to 255 are greys (xterm's 256colres.h).
    fn rgb(number: u8) -> [f64; 3] {
        const LEVELS: [u8; 6] = [0, 95, 135, 175, 215, 255];
        let levels = match number {
            16..232 => {
                let n = usize::from(number - 16);
                [LEVELS[n / 36], LEVELS[n / 6 % 6], LEVELS[n % 6]]
            }
            _ => [8 + 10 * (number - 232); 3],
        };
        levels.map(|level| f64::from(level) / 255.0)
    }

    fn luminance(rgb: [f64; 3]) -> f64 {
        let linear = rgb.map(|c| if c <= 0.04045 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) });
        0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    }

    #[test]
    fn colours_read_on_dark_and_on_light() {
        for number in [VM, ALLOCATOR, STACKS, FILES, OTHER, BAD, DOUBTFUL, GOOD] {
            let own = luminance(rgb(number));
            let (on_black, on_white) = ((own + 0.05) / 0.05, 1.05 / (own + 0.05));
            assert!(on_black >= 3.0 && on_white >= 3.0, "{number}: {on_black:.1} on black, {on_white:.1} on white");
        }
    }

    #[test]
    fn without_colours_there_are_only_attributes() {
        let ink = Ink::new(false);
        for style in [ink.group(Group::Vm), ink.severity(Severity::Critical, false), ink.fill(99.0), ink.up()] {
            assert_eq!((style.fg, style.bg), (None, None));
        }
    }
}

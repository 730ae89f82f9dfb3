//! Colours, from the palette of all screens. Text keeps the terminal's own colour; only its weight changes.

use plimsoll_observer::ledger::Group;
use plimsoll_observer::verdict::Severity;
use plimsoll_report::palette::{self, BAD, DOUBTFUL, GOOD};
use ratatui::style::{Color, Modifier, Style};

#[derive(Clone, Copy, Debug)]
pub struct Ink {
    has_colours: bool,
}

impl Ink {
    pub fn new(has_colours: bool) -> Ink {
        Ink { has_colours }
    }

    fn colour(self, number: u8) -> Style {
        if self.has_colours { Style::new().fg(Color::Indexed(number)) } else { Style::new() }
    }

    pub fn group(self, group: Group) -> Style {
        self.colour(palette::of_group(group))
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

    #[test]
    fn without_colours_there_are_only_attributes() {
        let ink = Ink::new(false);
        for style in [ink.group(Group::Vm), ink.severity(Severity::Critical, false), ink.fill(99.0), ink.up()] {
            assert_eq!((style.fg, style.bg), (None, None));
        }
    }
}

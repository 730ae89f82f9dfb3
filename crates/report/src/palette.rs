//! Colours of the terminal screens. Each has a contrast of at least 3 against black and against white (WCAG 2.1,
//! 1.4.11). So a bar and a mark can be read on dark and on light backgrounds.
//!
//! Numbers of the 256-colour palette, whose upper 240 entries are the same everywhere. The lower 16 are the user's: on
//! a light terminal their white and yellow can't be read.

use plimsoll_observer::ledger::Group;

const VM: u8 = 32;
const ALLOCATOR: u8 = 130;
const STACKS: u8 = 133;
const FILES: u8 = 30;
const OTHER: u8 = 244;
pub const BAD: u8 = 160;
pub const DOUBTFUL: u8 = 136;
pub const GOOD: u8 = 28;

pub const fn of_group(group: Group) -> u8 {
    match group {
        Group::Vm => VM,
        Group::Allocator => ALLOCATOR,
        Group::Stacks => STACKS,
        Group::Files => FILES,
        Group::Other => OTHER,
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
}

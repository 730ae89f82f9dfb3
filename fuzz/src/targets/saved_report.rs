//! Reports saved as JSON, which `report` and `diff` read.

use plimsoll_report::json::{Frames, parse, write};

use super::segment::of_books;
use crate::views::{self, written};

pub fn run(bytes: &[u8]) {
    let Ok((books, sites)) = parse(bytes) else { return };
    of_books(&books);
    views::all(&sites.profile);
    views::is_page(&plimsoll_report::page::of_books(&books, sites.profile.clone()));
    for frames in [Frames::InSites, Frames::InTable] {
        let again = written(|out| write(out, &books, Some(&sites), frames));
        if let Err(error) = parse(&again) {
            panic!("what we wrote can't be read: {error}");
        }
    }
}

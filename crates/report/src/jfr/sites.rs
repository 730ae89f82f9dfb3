//! Turns deep stacks into the sites of an instant: those with the most live bytes with their frames, the others with
//! figures only.

use plimsoll_facts::units::Bytes;
use plimsoll_jfr::writer::{Frame, FrameType, Stack};
use plimsoll_profiles::profile::{Frame as Deep, FrameId, FrameOrigin, Profile, Value};
use plimsoll_tracked::sites::{self, Sites};
use plimsoll_tracked::symbols::SourceLocation;

use super::process_state::{MOST_SITES, Site};

impl Site {
    /// The sites, biggest first. `named` gives the functions at the return address of a frame without a name, innermost
    /// first.
    pub fn of<'n>(of: &Sites, named: impl Fn(&Profile, &Deep) -> Option<&'n [SourceLocation]>) -> Vec<Site> {
        let profile = &of.profile;
        let sites = by_size(profile).into_iter().enumerate().map(|(rank, (stack, category, values))| Site {
            stack: if rank < MOST_SITES { frames(profile, stack, &named) } else { Stack::default() },
            category,
            figures: sites::figures(values),
            error: Bytes(values[sites::LIVE].error()),
        });
        sites.collect()
    }
}

/// The frames without a name in the stacks that will be written.
pub fn unnamed(of: &Sites) -> impl Iterator<Item = &Deep> {
    let profile = &of.profile;
    let biggest = by_size(profile).into_iter().take(MOST_SITES).flat_map(|(stack, ..)| stack);
    let nameless =
        |frame: &&Deep| frame.function.is_none() && matches!(frame.kind, FrameOrigin::Native | FrameOrigin::Jit);
    biggest.map(|frame| profile.frame_at(*frame)).filter(nameless)
}

fn by_size(profile: &Profile) -> Vec<(&[FrameId], String, &[Value])> {
    let mut entries: Vec<_> = profile.entries().collect();
    entries.sort_by_key(|(_, values)| std::cmp::Reverse(values[sites::LIVE].amount));
    let with_names = entries.into_iter().map(|(entry, values)| {
        let category = entry.labels.category.map_or("", |category| profile.name_at(category));
        (profile.frames_of(entry.stack), category.to_owned(), values)
    });
    with_names.collect()
}

fn frames<'n>(
    profile: &Profile,
    stack: &[FrameId],
    named: &impl Fn(&Profile, &Deep) -> Option<&'n [SourceLocation]>,
) -> Stack {
    let mut out = Stack::default();
    for id in stack {
        let frame = profile.frame_at(*id);
        let function = profile.function_at(profile.function_of(*id));
        if function.is_truncation() {
            out.truncated = true;
            continue;
        }
        let module = frame.module.map_or("", |module| profile.module_at(module).name());
        let line = frame.line.unwrap_or(0);
        match (&frame.function, named(profile, frame)) {
            (Some(name), _) if frame.kind == FrameOrigin::Java => out.frames.push(java(name, line, frame.inlined)),
            (Some(name), _) => out.frames.push(native(module, name.clone(), line, frame.kind)),
            (None, Some(locations)) if !locations.is_empty() => {
                let last = locations.len() - 1;
                out.frames.extend(locations.iter().enumerate().map(|(i, location)| {
                    let line = location.line.unwrap_or(0);
                    match location.java {
                        true => java(&location.function, line, i < last),
                        false => native(module, location.function.to_string(), line, frame.kind),
                    }
                }));
            }
            (None, _) => {
                let at = if module.is_empty() { frame.address.0 } else { frame.offset };
                out.frames.push(native(module, format!("{at:#x}"), line, frame.kind));
            }
        }
    }
    out
}

/// Interpreted and compiled frames of one method become one kind, so that they are one line of a report.
fn java(name: &str, line: u32, inlined: bool) -> Frame {
    let (class, function) = name.rsplit_once('.').unwrap_or(("", name));
    let kind = if inlined { FrameType::Inlined } else { FrameType::Jit };
    Frame { class: class.into(), function: function.into(), line, kind }
}

fn native(module: &str, function: String, line: u32, kind: FrameOrigin) -> Frame {
    let kind = match kind {
        FrameOrigin::Jit | FrameOrigin::Java => FrameType::Jit,
        FrameOrigin::Kernel => FrameType::Kernel,
        FrameOrigin::Native | FrameOrigin::Unknown => FrameType::Native,
    };
    Frame { class: module.into(), function, line, kind }
}

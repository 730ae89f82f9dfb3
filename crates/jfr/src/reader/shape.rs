//! Skips a value without decoding it. Each type's fields are compiled to a short list of steps.
//!
//! Two bounds hold for any metadata. A struct nests at most `DEPTH` deep and never contains itself. Each step consumes
//! at least one byte, because types of size zero are dropped when compiled. The only exception is a struct's own list
//! of steps, which is finite. So skipping n bytes takes at most n × `DEPTH` steps.

use super::cursor::{Broken, Cursor, Parsed};
use super::text;
use super::types::{Field, FieldType, SkipProgram, SkipStep, Type};

const DEPTH: u32 = 32;

/// The step for one value of the field; for an array, that of one element.
fn step(field: &Field, types: &[Type]) -> Option<SkipStep> {
    Some(match field.kind {
        _ if field.constant => SkipStep::Integers { count: 1, width: 8 },
        FieldType::Boolean | FieldType::Byte => SkipStep::Bytes(1),
        FieldType::Short | FieldType::Char => SkipStep::Integers { count: 1, width: 2 },
        FieldType::Int => SkipStep::Integers { count: 1, width: 4 },
        FieldType::Long => SkipStep::Integers { count: 1, width: 8 },
        FieldType::Float => SkipStep::Bytes(4),
        FieldType::Double => SkipStep::Bytes(8),
        FieldType::String => SkipStep::String,
        FieldType::Unknown => SkipStep::Unknown,
        FieldType::Struct(index) => {
            let shape = &types[index as usize].shape;
            match (shape.is_compiled, shape.height >= DEPTH) {
                // The struct isn't compiled yet, so it contains itself.
                (false, _) | (_, true) => SkipStep::Unknown,
                _ if shape.steps.is_empty() => return None,
                _ => SkipStep::Struct(index),
            }
        }
    })
}

fn inline_struct(field: &Field) -> Option<u32> {
    match field.kind {
        FieldType::Struct(index) if !field.constant => Some(index),
        _ => None,
    }
}

/// Compiles children first, with an explicit stack: hostile metadata may nest arbitrarily deep.
pub(super) fn compile(types: &mut [Type]) {
    let mut begun = vec![false; types.len()];
    for root in 0..types.len() {
        let mut path = vec![(root, 0)];
        if std::mem::replace(&mut begun[root], true) {
            continue;
        }
        while let Some((index, next)) = path.last_mut() {
            let (index, field) = (*index, *next);
            *next += 1;
            match types[index].fields.get(field).map(inline_struct) {
                Some(Some(child)) if !std::mem::replace(&mut begun[child as usize], true) => {
                    path.push((child as usize, 0));
                }
                Some(_) => {}
                None => {
                    path.pop();
                    types[index].shape = shape_of(&types[index], types);
                }
            }
        }
    }
    for index in 0..types.len() {
        let steps: Vec<Option<SkipStep>> = types[index].fields.iter().map(|field| step(field, types)).collect();
        types[index].fields.iter_mut().zip(steps).for_each(|(field, step)| field.step = step);
    }
}

fn shape_of(of: &Type, types: &[Type]) -> SkipProgram {
    let mut steps: Vec<SkipStep> = vec![];
    let mut height = 1;
    for field in &of.fields {
        let one = step(field, types);
        if let Some(SkipStep::Struct(child)) = one {
            height = height.max(types[child as usize].shape.height + 1);
        }
        // An array of zero-sized elements still has a count.
        match (field.array, one) {
            (true, one) => steps.extend([SkipStep::Array, one.unwrap_or(SkipStep::Bytes(0))]),
            (false, Some(one)) => match (merge(&steps, one), steps.last_mut()) {
                (Some(merged), Some(last)) => *last = merged,
                _ => steps.push(one),
            },
            (false, None) => {}
        }
    }
    SkipProgram { steps, height, is_compiled: true }
}

/// Merges `next` into the last step, unless that step belongs to an array.
fn merge(steps: &[SkipStep], next: SkipStep) -> Option<SkipStep> {
    let [before @ .., last] = steps else { return None };
    if before.last() == Some(&SkipStep::Array) {
        return None;
    }
    match (*last, next) {
        (SkipStep::Bytes(a), SkipStep::Bytes(b)) => Some(SkipStep::Bytes(a + b)),
        (SkipStep::Integers { count, width }, SkipStep::Integers { count: c, width: w }) => {
            Some(SkipStep::Integers { count: count + c, width: width + w })
        }
        _ => None,
    }
}

/// Skips a complete value of this type.
pub(super) fn skip(types: &[Type], index: u32, cursor: &mut Cursor<'_>) -> Parsed<()> {
    let mut steps = types[index as usize].shape.steps.iter();
    while let Some(step) = steps.next() {
        match (step, steps.as_slice()) {
            (SkipStep::Array, [element, ..]) => {
                steps.next();
                skip_array(types, *element, cursor)?;
            }
            (step, _) => skip_step(types, *step, cursor)?,
        }
    }
    Ok(())
}

/// Skips one field.
#[inline]
pub(super) fn skip_field(types: &[Type], field: &Field, cursor: &mut Cursor<'_>) -> Parsed<()> {
    match (field.array, field.step) {
        (true, one) => skip_array(types, one.unwrap_or(SkipStep::Bytes(0)), cursor),
        (false, Some(one)) => skip_step(types, one, cursor),
        (false, None) => Ok(()),
    }
}

/// Skips one element of an array field.
pub(super) fn skip_element(types: &[Type], field: &Field, cursor: &mut Cursor<'_>) -> Parsed<()> {
    field.step.map_or(Ok(()), |one| skip_step(types, one, cursor))
}

#[inline]
fn skip_step(types: &[Type], step: SkipStep, cursor: &mut Cursor<'_>) -> Parsed<()> {
    match step {
        SkipStep::Bytes(count) => cursor.take(count as usize).map(|_| ()),
        SkipStep::Integers { count, .. } if cursor.compressed => cursor.skip_leb128(count as usize),
        SkipStep::Integers { width, .. } => cursor.take(width as usize).map(|_| ()),
        SkipStep::String => text::skip(cursor),
        SkipStep::Struct(index) => skip(types, index, cursor),
        SkipStep::Unknown => Err(Broken::Malformed("a field of a type that the metadata doesn't describe")),
        SkipStep::Array => Ok(()),
    }
}

fn skip_array(types: &[Type], element: SkipStep, cursor: &mut Cursor<'_>) -> Parsed<()> {
    let count = cursor.count()?;
    match element {
        SkipStep::Bytes(size) => cursor.take(count.saturating_mul(size as usize)).map(|_| ()),
        SkipStep::Integers { width, .. } if !cursor.compressed => {
            cursor.take(count.saturating_mul(width as usize)).map(|_| ())
        }
        SkipStep::Integers { .. } => cursor.skip_leb128(count),
        _ => (0..count).try_for_each(|_| skip_step(types, element, cursor)),
    }
}
